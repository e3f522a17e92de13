// Package inboxtest is the contract of an inbox, and a way to let it die on purpose.
//
// [Run] proves that an inbox keeps its promise with the database, driver, pooler and
// settings that it will meet:
//
//	func TestInbox(t *testing.T) {
//		newDB := func(t *testing.T) *sqlx.DB { return ... } // with the inbox's tables, for this test alone
//		inboxtest.Run(t, newDB, func(db *sqlx.DB, cfg inbox.Config) (inboxtest.Inbox, error) {
//			return inbox.New(db, cfg)
//		})
//	}
//
// Each check has a sentence that says what it proves, printed when it fails.
//
// [CrashAt] proves a handler: the transaction dies at a [Point] of its way, as it does
// when the process is killed there. The message is delivered again, and the test looks
// whether the effect is there once:
//
//	for _, p := range inboxtest.Points() {
//		res := box.Apply(inboxtest.CrashAt(ctx, p), m, handler)
//		// res.Outcome is Again, and res.Err matches ErrCrashed
//		res = box.Apply(ctx, m, handler)
//		// res.Outcome is Applied, or Duplicate after AfterCommit
//	}
//
// The context may be that of a whole chain of middleware or of a consumer. [At] calls a
// function of the test's own, which may kill the process in earnest.
package inboxtest
