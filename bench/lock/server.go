package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// redisCPU returns the CPU time that the server has used.
func (b *bench) redisCPU(ctx context.Context) (time.Duration, error) {
	info, err := b.info(ctx, "cpu")
	if err != nil {
		return 0, err
	}
	var sum float64
	for _, field := range []string{"used_cpu_sys", "used_cpu_user"} {
		v, err := strconv.ParseFloat(info[field], 64)
		if err != nil {
			return 0, fmt.Errorf("INFO cpu: %s is %q", field, info[field])
		}
		sum += v
	}
	return time.Duration(sum * float64(time.Second)), nil
}

// commandCounts returns how often each command was run, by clients and scripts,
// since the last CONFIG RESETSTAT.
func (b *bench) commandCounts(ctx context.Context) (map[string]int, error) {
	info, err := b.info(ctx, "commandstats")
	if err != nil {
		return nil, err
	}
	counts := map[string]int{}
	for field, value := range info {
		command, ok := strings.CutPrefix(field, "cmdstat_")
		if !ok {
			continue
		}
		number, _, _ := strings.Cut(strings.TrimPrefix(value, "calls="), ",")
		if counts[command], err = strconv.Atoi(number); err != nil {
			return nil, fmt.Errorf("INFO commandstats: %s is %q", field, value)
		}
	}
	return counts, nil
}

func (b *bench) info(ctx context.Context, section string) (map[string]string, error) {
	text, err := b.admin.Info(ctx, section).Result()
	if err != nil {
		return nil, err
	}
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[key] = value
		}
	}
	return fields, nil
}
