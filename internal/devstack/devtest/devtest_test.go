package devtest_test

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/onceward/onceward/internal/devstack"
	"github.com/onceward/onceward/internal/devstack/devtest"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRedis_Shared(t *testing.T) {
	a, b := devtest.Redis(t), devtest.Redis(t)
	key := t.Name()
	if err := a.Set(t.Context(), key, "x", time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	if got, err := b.GetDel(t.Context(), key).Result(); err != nil || got != "x" {
		t.Errorf("GetDel = %q, %v, want x of the other client", got, err)
	}
}

func TestPostgres_SchemaPerTest(t *testing.T) {
	a, b := devtest.Postgres(t), devtest.Postgres(t)
	for _, db := range []*sqlx.DB{a, b} { // the same table twice: no clash
		if _, err := db.ExecContext(t.Context(), "CREATE TABLE things (id int PRIMARY KEY)"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := a.ExecContext(t.Context(), "INSERT INTO things VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	var n int
	if err := b.GetContext(t.Context(), &n, "SELECT count(*) FROM things"); err != nil || n != 0 {
		t.Errorf("count in the other schema = %d, %v, want 0", n, err)
	}
}

// A schema goes away even if a connection still holds a lock on its table.
func TestPostgres_DropsSchemaInUse(t *testing.T) {
	parent := t
	var schema string
	var tx *sqlx.Tx
	t.Run("user", func(t *testing.T) {
		db, err := sqlx.Connect("postgres", devtest.PostgresURL(t))
		if err != nil {
			t.Fatal(err)
		}
		tx = db.MustBegin() // still open when this test's clean-up runs
		tx.MustExec("CREATE TABLE things (id int)")
		if err := tx.Get(&schema, "SELECT current_schema()"); err != nil {
			t.Fatal(err)
		}
		parent.Cleanup(func() { db.Close() })
	})
	if err := tx.Rollback(); err == nil {
		t.Error("the connection outlives the clean-up of its schema")
	}
	var n int
	if err := devtest.Postgres(t).Get(&n, "SELECT count(*) FROM pg_namespace WHERE nspname = $1", schema); err != nil || n != 0 || schema == "" {
		t.Errorf("schemas named %q = %d, %v, want 0", schema, n, err)
	}
}

func TestKafka(t *testing.T) {
	c, err := kgo.NewClient(kgo.SeedBrokers(devtest.Kafka(t)...))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	topic := "devtest-" + time.Now().Format("150405.000000")
	if _, err := kadm.NewClient(c).CreateTopic(t.Context(), 1, 1, nil, topic); err != nil {
		t.Fatal(err)
	}
	if err := c.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte("x")}).FirstErr(); err != nil {
		t.Error(err)
	}
}

// impatient returns a client that tries once, for 200 ms, and does not keep the others waiting.
func impatient(t *testing.T, s *devtest.Server) *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: s.Addr, MaxRetries: -1, DialerRetries: 1, ReadTimeout: 200 * time.Millisecond})
	t.Cleanup(func() { c.Close() })
	return c
}

func TestOwnRedis_KillAndRestart(t *testing.T) {
	s := devtest.OwnRedis(t)
	c := impatient(t, s)
	if err := c.Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	old := s.PID()
	s.Kill()
	if err := c.Get(t.Context(), "k").Err(); err == nil {
		t.Error("Get succeeds on a killed server")
	}
	s.Restart()
	if err := c.Get(t.Context(), "k").Err(); !errors.Is(err, redis.Nil) {
		t.Errorf("Get after a restart: %v, want an empty server", err)
	}
	if s.PID() == old {
		t.Errorf("PID = %d as before, want that of the new process", old)
	}
}

func TestOwnRedis_ArgsKeepData(t *testing.T) {
	s := devtest.OwnRedis(t, "--appendonly", "yes", "--appendfsync", "always")
	c := s.Client()
	if err := c.Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	s.Restart()
	if got, err := c.Get(t.Context(), "k").Result(); err != nil || got != "v" {
		t.Errorf("Get after a restart = %q, %v, want v", got, err)
	}
}

func TestOwnRedis_Pause(t *testing.T) {
	s := devtest.OwnRedis(t)
	c := impatient(t, s)
	if err := c.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	s.Signal(syscall.SIGSTOP)
	if err := c.Ping(t.Context()).Err(); err == nil {
		t.Error("a paused server answers")
	}
	s.Signal(syscall.SIGCONT)
	if err := c.Ping(t.Context()).Err(); err != nil {
		t.Error(err)
	}
	s.Signal(syscall.SIGSTOP) // the clean-up has to end it all the same
}

func TestOwnPostgres_KeepsCommitsOverCrash(t *testing.T) {
	s := devtest.OwnPostgres(t, devstack.PostgresConfig{Fsync: true, Settings: map[string]string{"max_connections": "17"}})
	db, err := sqlx.Connect("postgres", s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for setting, want := range map[string]string{"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on", "max_connections": "17"} {
		var got string
		if err := db.Get(&got, "SELECT current_setting($1)", setting); err != nil || got != want {
			t.Errorf("%s = %q, %v, want %q", setting, got, err, want)
		}
	}
	db.MustExec("CREATE TABLE things (id int)")
	db.MustExec("INSERT INTO things VALUES (1)")
	open := db.MustBegin()
	open.MustExec("INSERT INTO things VALUES (2)")
	s.Restart()
	var ids []int
	if err := db.Select(&ids, "SELECT id FROM things"); err != nil || len(ids) != 1 || ids[0] != 1 {
		t.Errorf("ids after a crash = %v, %v, want [1]", ids, err)
	}
	if err := open.Commit(); err == nil {
		t.Error("a transaction outlives the crash")
	}
}
