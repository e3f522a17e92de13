// Package devtest gives tests the servers of package devstack.
//
// Servers are shared by the tests of a binary, start with the first test that asks, and
// end with the binary. A test has its own client, and in Postgres its own schema, all
// gone when the test ends; in a shared Redis it needs a key prefix of its own. A test
// that kills or pauses a server takes one for itself: [OwnRedis], [Start].
//
// With an address in the environment (see devstack), that server is used. "make test"
// sets them, so that all binaries share one stack.
//
// If a service can neither be found nor fetched, the test is skipped and says so. With
// ONCEWARD_REQUIRE=1 it fails.
//
// No goroutine is left in the test's process between calls, so goleak has nothing to
// except.
//
//	func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
//
//	func TestClaim(t *testing.T) {
//		db := devtest.Postgres(t)  // an empty schema
//		rdb := devtest.Redis(t)
//		// ...
//	}
package devtest
