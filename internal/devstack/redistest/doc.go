// Package redistest gives tests the Redis that package devstack has not: a cluster, a
// master behind Sentinel, and a proxy that makes the faults of a network.
//
// All of it belongs to one test and ends with it. If the test's process is killed, each
// server is killed by a shell that waits for nothing else. Without redis-server (or
// valkey-server) the test is skipped and says so; with ONCEWARD_REQUIRE=1 it fails.
//
// Methods that fail the test are for the test's own goroutine.
//
//	c := redistest.StartCluster(t)
//	l, err := reentrant.New(c.Client(), reentrant.Config{})
//	// ...
//	c.SetNodeTimeout(time.Second)
//	c.MasterOf("key").Kill()
package redistest
