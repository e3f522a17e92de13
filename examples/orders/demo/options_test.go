package demo

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"strings"
	"testing"

	"github.com/onceward/onceward/examples/orders/service"
)

func TestParse_Defaults(t *testing.T) {
	got, err := parse(nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if want := (Options{Guard: service.Both, Orders: 3000, Seed: 1, timing: normal}); got != want {
		t.Errorf("options = %+v, want %+v", got, want)
	}
}

func TestParse_Refuses(t *testing.T) {
	tests := []struct {
		args string
		want string // in the error
	}{
		{"-guard sword", `-guard is "sword", must be one of none, lock, inbox, both`},
		{"-guard=", `-guard is "", must be one of none, lock, inbox, both`},
		{"-orders 99", "-orders is 99, must be at least 100"},
		{"-orders -1", "-orders is -1, must be at least 100"},
		{"-orders many", `invalid value "many" for flag -orders`},
		{"-seed -1", `invalid value "-1" for flag -seed`},
		{"-compare -guard lock", "-guard and -compare are both set, must be one of them"},
		{"-guards both", "not defined: -guards"},
		{"both", `argument "both", must be flags only`},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			_, err := parse(strings.Fields(tt.args), io.Discard)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error = %v, want %q in it", err, tt.want)
			}
		})
	}
}

func TestParse_ReportsAllMistakes(t *testing.T) {
	_, err := parse([]string{"-guard", "sword", "-orders", "1"}, io.Discard)
	for _, want := range []string{"-guard", "-orders"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, want %q in it", err, want)
		}
	}
}

func TestParse_Help(t *testing.T) {
	var out bytes.Buffer
	if _, err := parse([]string{"--help"}, &out); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("error = %v, want %v", err, flag.ErrHelp)
	}
	for _, want := range []string{"-guard", "-orders", "-seed", "-compare", "KAFKA_BROKERS", "exit code"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("help lacks %q:\n%s", want, &out)
		}
	}
}

// A server that is named and does not answer is an error, not a reason to start one.
func TestMain_UnreachableServers(t *testing.T) {
	for _, tt := range []struct{ env, value string }{
		{"KAFKA_BROKERS", "127.0.0.1:1"},
		{"REDIS_URL", "redis://127.0.0.1:1"},
		{"DATABASE_URL", "postgres://nobody@127.0.0.1:1/none?sslmode=disable"},
	} {
		t.Run(tt.env, func(t *testing.T) {
			t.Setenv(tt.env, tt.value)
			var out, errs bytes.Buffer
			if got := Main([]string{"-orders", "100"}, &out, &errs); got != exitNotPlayed {
				t.Errorf("exit code = %d, want %d", got, exitNotPlayed)
			}
			if !strings.Contains(errs.String(), tt.env+" is set, but") {
				t.Errorf("standard error = %q, want it to name %s", &errs, tt.env)
			}
		})
	}
}
