package middleware

import "context"

// Recover turns a panic of what is inside of it into a [*PanicError] for each
// message of the batch: nobody can tell which one it was about. The handler forms
// guard their functions one by one, so only a middleware can get here. It stands
// outside of the middleware that it guards against, usually first.
func Recover() Middleware {
	return func(next Handler) Handler {
		return HandlerFunc(func(ctx context.Context, ms []*Message) (errs []error) {
			err := protect(func() error {
				errs = next.Handle(ctx, ms)
				return nil
			})
			if err == nil {
				return errs
			}
			errs = make([]error, len(ms))
			for i := range errs {
				errs[i] = err
			}
			return errs
		})
	}
}
