package reentrant

// Queued returns how many callers wait in this process behind the head of a line.
func (l *Locker) Queued(name string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ln := l.lines[name]; ln != nil {
		return len(ln.behind)
	}
	return 0
}
