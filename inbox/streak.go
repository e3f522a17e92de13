package inbox

import "sync"

// maxStreaks is how many messages a process remembers. If it has to remember more, it
// forgets all of them, which gives each some tries more.
const maxStreaks = 10_000

// streaks count the failures in a row of each message that were nobody's fault.
//
// They are kept in memory and not in a table: most of these failures mean that the
// database is not to be written to just now. What a restart forgets is some tries, and a
// process that is restarted often cannot blame a message for that.
type streaks struct {
	mu sync.Mutex
	of map[uuid]int // guarded by mu
}

// add counts one failure, and returns how many there are.
func (s *streaks) add(key uuid) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil || len(s.of) >= maxStreaks && s.of[key] == 0 {
		s.of = make(map[uuid]int)
	}
	s.of[key] = min(s.of[key], MaxUncharged) + 1
	return s.of[key]
}

// end forgets the failures of a message: it was decided, or charged.
func (s *streaks) end(key uuid) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of, key)
}
