package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// tick is the unit of times in /proc. It is 10 ms on all of Linux that Go runs on.
const tick = 10 * time.Millisecond

// cpuOf returns the CPU time that a process and its children have used, 0 where there
// is no /proc. What a child used that has ended is not in it.
func cpuOf(pid int) time.Duration {
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", pid))
	ticks := 0
	for _, p := range append(bytes.Fields(children), strconv.AppendInt(nil, int64(pid), 10)) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%s/stat", p))
		if err != nil {
			continue // it has ended
		}
		// "pid (name) state ppid ...": the name may hold anything.
		_, rest, _ := bytes.Cut(stat, []byte(") "))
		if fields := bytes.Fields(rest); len(fields) > 12 {
			user, _ := strconv.Atoi(string(fields[11])) // the kernel writes numbers
			system, _ := strconv.Atoi(string(fields[12]))
			ticks += user + system
		}
	}
	return time.Duration(ticks) * tick
}
