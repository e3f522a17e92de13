package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// tick is the unit of times in /proc. It is 10 ms on all of Linux that Go runs on.
const tick = 10 * time.Millisecond

// cpuOf returns the CPU time that a process and its children have used, 0
// where there is no /proc. What a child used that has ended is not in it.
func cpuOf(pid int) (sum time.Duration) {
	files, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is good
	for _, file := range files {
		stat, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		// "pid (name) state ppid ...": the name may hold anything.
		_, rest, found := bytes.Cut(stat, []byte(") "))
		fields := bytes.Fields(rest)
		if !found || len(fields) < 13 {
			continue
		}
		number := func(i int) int { n, _ := strconv.Atoi(string(fields[i])); return n } // the kernel writes numbers
		if number(1) == pid || filepath.Base(filepath.Dir(file)) == strconv.Itoa(pid) {
			sum += time.Duration(number(11)+number(12)) * tick
		}
	}
	return sum
}
