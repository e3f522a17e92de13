// Package service closes orders that were not paid in time: a whole service, to
// be copied.
//
// Each instance does two things.
//
// It scans. Under the lock of the scan job, it looks for unpaid orders whose
// deadline is over, tells topic orders.timeout about them, and marks them as
// announced. An instance that finds the lock busy leaves this round to the other
// one. If it dies between telling and marking, the next round tells again; the
// event has the same ID, so the second one is a duplicate.
//
// It handles these events. Under the lock of the order, it asks the payment
// service for the refund of the deposit; then, in one transaction with the inbox row
// of the event, it closes the order, gives the stock back, and writes the refund and
// a line of the ledger.
//
//	record -> Lock (order:1001) -> Refund (payment service) -> Inbox (claim, close order, COMMIT)
//
// [NewHandler] is this chain, and the chains without one guard or the other that the
// demo compares it with. [Run] runs an instance; its wiring is in options.go. The rest is
// what every service has: configuration, schema, clients.
package service
