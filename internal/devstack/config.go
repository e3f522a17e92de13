package devstack

import (
	"errors"
	"fmt"
	"os"
	"regexp"
)

// Names of the parts, for [Stack.Kill] and [Stack.Restart].
const (
	Kafka     = "kafka"
	Redis     = "redis"
	Postgres  = "postgres"
	PgBouncer = "pgbouncer"
)

// Variables of the environment that give an address (rung 1), and that [Stack.Env] sets.
const (
	EnvKafka    = "KAFKA_BROKERS"
	EnvRedis    = "REDIS_URL"
	EnvPostgres = "DATABASE_URL"
)

// Config says which parts a stack has. At least one is needed.
type Config struct {
	Kafka    bool
	Redis    bool
	Postgres bool

	// PgBouncer is a pooler in transaction mode that has no database yet: see
	// [PgBouncerDatabases]. No address in the environment takes its place.
	PgBouncer bool

	// Apache asks for an Apache Kafka broker on a JVM in place of kfake. It needs Java 17
	// and, the first time, Maven to fetch the jars.
	//
	// Defaults to true if ONCEWARD_KAFKA is "apache".
	Apache bool

	// Private ignores the addresses in the environment, so that the servers are the
	// caller's alone and may be killed.
	Private bool

	RedisConfig    RedisConfig
	PostgresConfig PostgresConfig

	// Progress is called with one line of text per step, from the goroutine that called
	// Start and before Start returns. It must not block for long.
	//
	// Defaults to no output.
	Progress func(line string) `json:"-"`
}

// RedisConfig is about a Redis that is started. An address in the environment ignores it.
type RedisConfig struct {
	// Real refuses miniredis: the part is a process of its own, or missing.
	Real bool

	// Args are added to the command line of redis-server and win over the defaults
	// (no persistence). They imply Real.
	Args []string
}

// PostgresConfig is about a Postgres that is started. An address in the environment
// ignores it.
//
// Server binaries are looked for in $PG_BIN (which must have them, if set), `pg_config
// --bindir`, PATH (links are followed), and the folders of Debian, Red Hat, Homebrew and
// Postgres.app, highest version first. ONCEWARD_POSTGRES=npm skips all of them.
//
// Postgres refuses to run as root. Started by root, it runs as user postgres or nobody.
type PostgresConfig struct {
	// Fsync makes commits survive a power cut. Without it they survive only the death of
	// the server, and cost far less.
	Fsync bool

	// Settings are server parameters ("max_wal_size": "64MB") that win over the defaults.
	Settings map[string]string
}

var settingName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.]*$`)

func (c Config) withDefaults() Config {
	c.Apache = c.Apache || os.Getenv("ONCEWARD_KAFKA") == "apache"
	if c.Progress == nil {
		c.Progress = func(string) {}
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	if len(c.parts()) == 0 {
		errs = append(errs, errors.New("no part is wanted, set at least one of Kafka, Redis, Postgres and PgBouncer"))
	}
	if v := os.Getenv("ONCEWARD_KAFKA"); v != "" && v != "apache" && v != "kfake" {
		errs = append(errs, fmt.Errorf("ONCEWARD_KAFKA is %q, must be kfake or apache", v))
	}
	if v := os.Getenv("ONCEWARD_POSTGRES"); v != "" && v != "local" && v != "npm" {
		errs = append(errs, fmt.Errorf("ONCEWARD_POSTGRES is %q, must be local or npm", v))
	}
	for name := range c.PostgresConfig.Settings {
		if !settingName.MatchString(name) {
			errs = append(errs, fmt.Errorf("PostgresConfig.Settings names %q, must be the name of a server parameter", name))
		}
	}
	return errors.Join(errs...)
}

// parts returns the names of the wanted parts.
func (c Config) parts() []string {
	var parts []string
	if c.Kafka {
		parts = append(parts, Kafka)
	}
	if c.Redis {
		parts = append(parts, Redis)
	}
	if c.Postgres {
		parts = append(parts, Postgres)
	}
	if c.PgBouncer {
		parts = append(parts, PgBouncer)
	}
	return parts
}
