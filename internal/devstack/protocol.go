package devstack

import (
	"errors"
	"fmt"
)

// What goes over the two pipes, one JSON value per line. To the supervisor: the Config,
// then commands. From it: reports.

type command struct {
	Seq  int    // returned in the report
	Op   string // kill or restart
	Part string
}

// A report is one of: Progress; Ready and Dir, once; Error and Missing, for the start as a
// whole; Seq with PID or Error, the reply to a command.
type report struct {
	Progress string          `json:",omitempty"`
	Ready    map[string]Part `json:",omitempty"`
	Dir      string          `json:",omitempty"`
	Seq      int             `json:",omitempty"`
	PID      int             `json:",omitempty"`
	Error    string          `json:",omitempty"`
	Missing  bool            `json:",omitempty"` // the error matches ErrMissing
}

func (r report) asError() error {
	if r.Missing {
		return fmt.Errorf("%w: %s\nor run \"docker compose up -d --wait\" and set %s, %s and %s as docker-compose.yml says",
			ErrMissing, r.Error, EnvKafka, EnvRedis, EnvPostgres)
	}
	return errors.New("devstack: " + r.Error)
}

// A missingError says that a part is not here, and how to get it.
type missingError struct {
	what  string // is missing
	cause error  // why it could not be fetched, or nil
}

func (e *missingError) Error() string {
	if e.cause != nil {
		return fmt.Sprintf("%s (%v)", e.what, e.cause)
	}
	return e.what
}

func (e *missingError) Unwrap() error { return e.cause }
