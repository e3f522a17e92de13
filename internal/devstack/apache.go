package devstack

import (
	"context"
	"errors"
)

func findApache(ctx context.Context, dir string, note func(string, ...any)) (server, error) {
	return nil, errors.New("TODO")
}
