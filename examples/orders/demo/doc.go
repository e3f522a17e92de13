// Package demo lets everything go wrong that can, on purpose, and then counts.
//
// The parent process plays the world: it makes the orders, is the payment service, sends
// the signals, and reads what is left at the end. Three child processes are instances of
// the service (package service), so that SIGKILL and SIGSTOP are real. Children report
// over a pipe what they hold and what became of every delivery.
//
// Signals are sent on such a report, never after a sleep, and whatever the parent waits
// for is a report or an answer of a server. So each scene happens in each run, on a
// fast machine and on a slow one.
//
//	world.go     schema, topics and orders of one run, and the way to all servers
//	instance.go  a child process, seen from the parent; child.go is its inside
//	kafka.go     topics, the group, and what is in both
//	journal.go   everything that children reported
//	payments.go  the payment service, which can be told not to answer
//	play.go      the order of the scenes: pause.go, late.go, kill.go
//	evidence.go  takeovers and refused holders, with owners and fences
//	reconcile.go each offset of both topics against what was reported
//	audit.go     the invariants, with the SQL behind each
//	compare.go   four worlds, one per guard, side by side
package demo
