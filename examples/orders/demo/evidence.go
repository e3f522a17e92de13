package demo

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// A takeover is a lock that passed to another instance without having been released.
type takeover struct{ from, to tenure }

func (t takeover) String() string {
	return fmt.Sprintf("%s: %s %s -> %s", t.to.Lock, t.from.who(), t.from.lost, t.to.who())
}

// takeovers finds them among the grants of each lock, in order of their fences.
func takeovers(grants map[grant]*tenure) []takeover {
	byLock := map[string][]*tenure{}
	for _, t := range grants {
		byLock[t.Lock] = append(byLock[t.Lock], t)
	}
	var all []takeover
	for _, lock := range slices.Sorted(maps.Keys(byLock)) {
		ts := byLock[lock]
		slices.SortFunc(ts, func(a, b *tenure) int { return cmp.Compare(a.Fence, b.Fence) })
		for i, t := range ts[1:] {
			if before := ts[i]; before.lost != "" && before.by != t.by {
				all = append(all, takeover{*before, *t})
			}
		}
	}
	return all
}

// A refusal is a claim whose fence was stale.
type refusal struct {
	told
	by tenure // who had claimed with a higher fence; zero if nobody is known to have had it
}

func (r refusal) String() string {
	return fmt.Sprintf("%s: %s (owner %s, fence %d) refused %s, %s had claimed", r.Grant.Lock, r.told.by, r.Grant.Owner, r.Grant.Fence, r.ID, r.by.who())
}

// refusals finds the stale ones among the outcomes, and who was ahead of them.
func refusals(outcomes map[position][]told, grants map[grant]*tenure) []refusal {
	type fenced struct {
		lock  string
		fence int64
	}
	holder := map[fenced]tenure{}
	for g, t := range grants {
		holder[fenced{g.Lock, g.Fence}] = *t
	}
	var all []refusal
	for _, at := range slices.SortedFunc(maps.Keys(outcomes), comparePositions) {
		for _, o := range outcomes[at] {
			if o.Result == resultStale {
				all = append(all, refusal{o, holder[fenced{o.Grant.Lock, o.Stored}]})
			}
		}
	}
	return all
}

// incomplete counts what lacks one of the two owners or fences, or where they are not in
// order.
func incomplete(ts []takeover, rs []refusal) int {
	n := 0
	pair := func(before, after grant) {
		if before.Owner == "" || after.Owner == "" || before.Owner == after.Owner || before.Fence < 1 || before.Fence >= after.Fence {
			n++
		}
	}
	for _, t := range ts {
		pair(t.from.grant, t.to.grant)
	}
	for _, r := range rs {
		pair(r.Grant, r.by.grant)
	}
	return n
}
