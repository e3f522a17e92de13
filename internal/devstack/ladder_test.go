package devstack

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

func TestConfig_Validate(t *testing.T) {
	tests := []struct {
		name string
		env  [2]string
		cfg  Config
		want string
	}{
		{"nothing wanted", [2]string{}, Config{}, "at least one of"},
		{"kafka of the environment", [2]string{"ONCEWARD_KAFKA", "redpanda"}, Config{Kafka: true}, "ONCEWARD_KAFKA"},
		{"postgres of the environment", [2]string{"ONCEWARD_POSTGRES", "mysql"}, Config{Postgres: true}, "ONCEWARD_POSTGRES"},
		{"setting", [2]string{}, Config{Postgres: true, PostgresConfig: PostgresConfig{Settings: map[string]string{"a b": "1"}}}, `"a b"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.env[0] != "" {
				t.Setenv(tt.env[0], tt.env[1])
			}
			_, err := Start(t.Context(), tt.cfg)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Start = %v, want an error with %q", err, tt.want)
			}
		})
	}
}

func TestEnv_Used(t *testing.T) {
	clearEnv(t)
	own := start(t, Config{Kafka: true, Redis: true, Postgres: true})
	for _, v := range own.Env() {
		name, value, _ := strings.Cut(v, "=")
		t.Setenv(name, value)
	}
	tmp := tempHome(t)
	s := start(t, Config{Kafka: true, Redis: true, Postgres: true})
	if names := entries(t, tmp); s.Dir != "" || len(names) != 0 {
		t.Errorf("Dir = %q with %v in TMPDIR, want nothing made", s.Dir, names)
	}
	for part, name := range map[string]string{Kafka: EnvKafka, Redis: EnvRedis, Postgres: EnvPostgres} {
		p := s.Parts[part]
		if p.URL != own.Parts[part].URL || !strings.Contains(p.Rung, name) || p.PID != 0 {
			t.Errorf("%s = %+v, want what %s says", part, p, name)
		}
		if err := s.Kill(t.Context(), part); err == nil {
			t.Errorf("a %s of the environment can be killed", part)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := askRedis(t.Context(), own.Parts[Redis].URL); err != nil {
		t.Errorf("after Close the server of the environment is gone: %v", err)
	}
}

func TestEnv_UnreachableNamesVariable(t *testing.T) {
	ports, err := freePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	dead := addr(ports[0])
	tests := []struct {
		name, value string
		cfg         Config
	}{
		{EnvKafka, dead, Config{Kafka: true}},
		{EnvRedis, "redis://" + dead, Config{Redis: true}},
		{EnvRedis, "nonsense", Config{Redis: true}},
		{EnvPostgres, "postgres://u@" + dead + "/db?sslmode=disable", Config{Postgres: true}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			clearEnv(t)
			t.Setenv(tt.name, tt.value)
			_, err := Start(t.Context(), tt.cfg)
			if err == nil || !strings.Contains(err.Error(), tt.name+" is set") || errors.Is(err, ErrMissing) {
				t.Errorf("Start = %v, want an error that names %s and is not ErrMissing", err, tt.name)
			}
		})
	}
}

func TestPrivate_IgnoresEnv(t *testing.T) {
	t.Setenv(EnvRedis, "redis://192.0.2.1:1")
	s := start(t, Config{Redis: true, Private: true})
	if err := askRedis(t.Context(), s.Parts[Redis].URL); err != nil {
		t.Error(err)
	}
}

func TestRedis_Mini(t *testing.T) {
	clearEnv(t)
	hidePATH(t)
	s := start(t, Config{Redis: true})
	if got := s.Parts[Redis].Rung; !strings.Contains(got, "miniredis") {
		t.Fatalf("Rung = %q, want miniredis", got)
	}
	opts, err := redis.ParseURL(s.Parts[Redis].URL)
	if err != nil {
		t.Fatal(err)
	}
	opts.MaxRetries, opts.DialerRetries = -1, 1
	c := redis.NewClient(opts)
	defer c.Close()
	if err := c.Set(t.Context(), "k", "v", 100*time.Millisecond).Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 5*time.Second, "a key with a TTL of 100ms is gone", func() bool {
		return errors.Is(c.Get(t.Context(), "k").Err(), redis.Nil)
	})

	if err := c.Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := s.Kill(t.Context(), Redis); err != nil {
		t.Fatal(err)
	}
	if err := c.Ping(t.Context()).Err(); err == nil {
		t.Error("a killed miniredis answers")
	}
	if _, err := s.Restart(t.Context(), Redis); err != nil {
		t.Fatal(err)
	}
	if err := c.Get(t.Context(), "k").Err(); !errors.Is(err, redis.Nil) {
		t.Errorf("Get after a restart: %v, want an empty server", err)
	}
}

// One error names everything that is missing.
func TestMissing_NamesAll(t *testing.T) {
	clearEnv(t)
	hidePATH(t)
	tmp := tempHome(t)
	_, err := Start(t.Context(), Config{Kafka: true, Apache: true, Redis: true, RedisConfig: RedisConfig{Real: true}})
	if !errors.Is(err, ErrMissing) {
		t.Fatalf("Start = %v, want ErrMissing", err)
	}
	for _, want := range []string{"Java 17", "redis-server", "apt-get install", "brew install", "docker compose up -d", EnvKafka, EnvRedis} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
	if names := entries(t, tmp); len(names) != 0 {
		t.Errorf("%v is left behind", names)
	}
}

func TestApache_JavaTooOld(t *testing.T) {
	dir := t.TempDir()
	script := "#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n"
	if err := os.WriteFile(filepath.Join(dir, "java"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	if _, err := findJava(t.Context()); err == nil || !strings.Contains(err.Error(), "version 11") {
		t.Errorf("findJava = %v, want an error that says the version", err)
	}
}

func TestKfake_KeepsRecordsOverRestart(t *testing.T) {
	clearEnv(t)
	produceAndRestart(t, start(t, Config{Kafka: true}))
}

func TestApache(t *testing.T) {
	if testing.Short() {
		t.Skip("a JVM takes 10 s to start, and 45 MB may have to be fetched")
	}
	for _, name := range []string{"java", "mvn"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skip(err)
		}
	}
	clearEnv(t)
	t.Setenv("ONCEWARD_KAFKA", "apache")
	s := start(t, Config{Kafka: true})
	if got := s.Parts[Kafka].Rung; !strings.Contains(got, "Apache Kafka "+kafkaVersion) {
		t.Errorf("Rung = %q, want Apache Kafka", got)
	}
	produceAndRestart(t, s)
}

// produceAndRestart shows that an acknowledged record outlives a crash of the broker, and
// that a client of before reads it after.
func produceAndRestart(t *testing.T, s *Stack) {
	t.Helper()
	c, err := kgo.NewClient(kgo.SeedBrokers(s.Brokers()...), kgo.ConsumeTopics("orders"), kgo.MetadataMinAge(100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := kadm.NewClient(c).CreateTopic(t.Context(), 3, 1, nil, "orders"); err != nil {
		t.Fatal(err)
	}
	if err := c.ProduceSync(t.Context(), &kgo.Record{Topic: "orders", Value: []byte("one")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if err := s.Kill(t.Context(), Kafka); err != nil {
		t.Fatal(err)
	}
	if err := askKafka(t.Context(), s.Parts[Kafka].URL); err == nil {
		t.Error("a killed broker answers")
	}
	if _, err := s.Restart(t.Context(), Kafka); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		fetches := c.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("the record is not read after the restart: %v", fetches.Err())
		}
		for _, r := range fetches.Records() {
			if string(r.Value) != "one" {
				t.Errorf("record = %q, want one", r.Value)
			}
			return
		}
	}
}

func TestPostgres_Npm(t *testing.T) {
	if testing.Short() {
		t.Skip("24 MB may have to be fetched")
	}
	clearEnv(t)
	// No PG_BIN, nothing of Postgres on PATH, and Debian's folder ruled out.
	hidePATH(t, "npm", "node", "sh", "ps")
	t.Setenv("ONCEWARD_POSTGRES", "npm")
	s := start(t, Config{Postgres: true})
	if got := s.Parts[Postgres].Rung; !strings.Contains(got, "npm 18.4") {
		t.Errorf("Rung = %q, want 18.4 from npm", got)
	}
	db, err := sql.Open("postgres", s.Parts[Postgres].URL)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var n int
	if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM generate_series(1, 3)").Scan(&n); err != nil || n != 3 {
		t.Errorf("count = %d, %v, want 3", n, err)
	}
}

// The text of a server that does not start is in the error.
func TestStart_ErrorHasServersWords(t *testing.T) {
	clearEnv(t)
	tmp := tempHome(t)
	tests := []struct {
		name, want string
		cfg        Config
	}{
		{"redis", "no-such-directive", Config{Redis: true, RedisConfig: RedisConfig{Args: []string{"--no-such-directive", "1"}}}},
		{"postgres", "no_such_parameter", Config{Postgres: true, PostgresConfig: PostgresConfig{Settings: map[string]string{"no_such_parameter": "1"}}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Start(t.Context(), tt.cfg)
			if errors.Is(err, ErrMissing) {
				t.Skip(err)
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Start = %v, want an error with %q", err, tt.want)
			}
			if names := entries(t, tmp); len(names) != 0 {
				t.Errorf("%v is left behind", names)
			}
		})
	}
}
