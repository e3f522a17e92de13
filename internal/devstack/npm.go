package devstack

import (
	"context"
	"errors"
)

func npmBinaries(ctx context.Context, note func(string, ...any)) (binaries, error) {
	return binaries{}, &missingError{what: "install Postgres", cause: errors.New("TODO")}
}
