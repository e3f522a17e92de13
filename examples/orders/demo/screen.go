package demo

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// A screen prints what happens. On a terminal its last line shows life; elsewhere that line
// is printed now and then.
type screen struct {
	out      io.Writer
	terminal bool

	mu     sync.Mutex // guards out and all below
	status string     // shown as the last line, on a terminal
}

const (
	repaint = 150 * time.Millisecond // on a terminal
	reprint = 5 * time.Second        // elsewhere
)

func newScreen(out io.Writer) *screen {
	s := &screen{out: out}
	if f, ok := out.(*os.File); ok {
		info, err := f.Stat()
		s.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
	}
	return s
}

const clearLine = "\r\x1b[K"

// print prints whole lines above the status.
func (s *screen) print(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.terminal && s.status != "" {
		text = clearLine + text + s.status
	}
	_, _ = io.WriteString(s.out, text)
}

// head begins a phase.
func (s *screen) head(format string, a ...any) { s.print("\n" + fmt.Sprintf(format, a...) + "\n") }

// say adds a line to it.
func (s *screen) say(format string, a ...any) { s.print("  " + fmt.Sprintf(format, a...) + "\n") }

// took ends a phase.
func (s *screen) took(d time.Duration) { s.say("[%.1f s]", d.Seconds()) }

// live shows a status that changes, until stop is called.
func (s *screen) live(status func() string) (stop func()) {
	every := reprint
	if s.terminal {
		every = repaint
	}
	tick := time.NewTicker(every)
	end, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-tick.C:
				s.paint(status())
			case <-end:
				return
			}
		}
	}()
	return sync.OnceFunc(func() {
		tick.Stop()
		close(end)
		<-done
		s.paint("")
	})
}

func (s *screen) paint(status string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.terminal:
		s.status = fmt.Sprintf("  %.76s", status) // one line, or it could not be cleared
		if status == "" {
			s.status = ""
		}
		_, _ = io.WriteString(s.out, clearLine+s.status)
	case status != "":
		_, _ = io.WriteString(s.out, "  ... "+status+"\n")
	}
}

// table prints rows in columns; right says which are numbers.
func (s *screen) table(rows [][]string, right ...int) {
	var width []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], len(cell))
		}
	}
	flush := map[int]bool{}
	for _, i := range right {
		flush[i] = true
	}
	for _, row := range rows {
		var b strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", width[i]-len(cell))
			if flush[i] {
				b.WriteString("  " + pad + cell)
			} else {
				b.WriteString("  " + cell + pad)
			}
		}
		s.print(strings.TrimRight(b.String(), " ") + "\n")
	}
}
