package service

import (
	"fmt"
	"slices"
	"strings"
)

// A Guard says what protects the effect.
type Guard string

// The guards.
const (
	None  Guard = "none"
	Lock  Guard = "lock"  // the Redis lock alone
	Inbox Guard = "inbox" // the inbox alone
	Both  Guard = "both"  // the inbox, and the lock with its fence
)

// Guards are all of them, the weakest first.
var Guards = []Guard{None, Lock, Inbox, Both}

// ParseGuard returns the guard with that name.
func ParseGuard(name string) (Guard, error) {
	if g := Guard(name); slices.Contains(Guards, g) {
		return g, nil
	}
	names := make([]string, len(Guards))
	for i, g := range Guards {
		names[i] = string(g)
	}
	return "", fmt.Errorf("guard is %q, must be one of %s", name, strings.Join(names, ", "))
}

// Locks reports whether handlers run under the Redis lock.
func (g Guard) Locks() bool { return g == Lock || g == Both }

// Claims reports whether the inbox decides about effects.
func (g Guard) Claims() bool { return g == Inbox || g == Both }
