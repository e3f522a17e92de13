// Package devstack finds or starts Kafka, Redis and Postgres for the demo, the tests and
// the benchmarks, and says where each one came from.
//
// Each part climbs a ladder and stops at the first rung that holds:
//
//  1. An address in the environment: KAFKA_BROKERS (host:port, comma-separated),
//     REDIS_URL, DATABASE_URL. It must answer; an address that does not is an error,
//     never a reason to climb on.
//  2. What the machine has. Postgres: server binaries (see [PostgresConfig]) run on a
//     throw-away cluster. Redis: redis-server or valkey-server on PATH. Kafka: kfake, a
//     broker written in Go, on a temporary folder.
//  3. What can be had. Postgres: pinned server binaries from an npm package, checked
//     against a digest in this source and kept in a cache. Redis: miniredis.
//  4. An error that matches [ErrMissing] and names what to install.
//
// Postgres is always a real server. [Config.Apache], or ONCEWARD_KAFKA=apache in the
// environment, asks for a real broker on a JVM in place of kfake.
//
// # What ends it
//
// All that was started belongs to one supervisor process, which is tied to its parent by
// a pipe. When the parent closes the stack, ends, or is killed with SIGKILL, the pipe
// ends, and within 10 seconds the supervisor has stopped the servers and removed their
// folder. It runs in a session of its own, so Ctrl-C reaches the parent alone. If the
// supervisor itself is killed, the kernel ends the servers on Linux, and the next start
// of any stack by the same user kills what is left elsewhere and removes the folder.
//
// The supervisor is the same executable, started again with a variable in its
// environment that an init function of this package looks for. So any program that
// imports the package can start a stack (a test binary, a "go run", the demo), none
// needs a hook in main, and no second binary has to be built or found. The price: init
// functions that run before this package's also run in the supervisor.
//
// # What it does not promise
//
// Servers listen on 127.0.0.1 only, but are otherwise open: Redis and Kafka ask for no
// password. Unless [PostgresConfig.Fsync] is set, a power cut loses what Postgres
// committed (a kill of the server does not). kfake has no replication.
//
//	stack, err := devstack.Start(ctx, devstack.Config{Redis: true, Postgres: true, Progress: log.Println})
//	if err != nil {
//		return err
//	}
//	defer stack.Close()
//	cmd.Env = append(os.Environ(), stack.Env()...)
//
// Tests use package devtest, which shares servers among the tests of a binary.
package devstack
