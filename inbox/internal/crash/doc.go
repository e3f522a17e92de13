// Package crash carries a test's hook to the points of the inbox's transactions, in
// the context, so that nothing of it is in the inbox's settings. Users set one with
// package inboxtest.
package crash
