package ignore

import (
	"context"

	"github.com/go-rlock/rlock/rlock"
)

func work(ctx context.Context) { <-ctx.Done() }

func do(ctx context.Context, m *rlock.Mutex) error {
	return m.Do(ctx, func(context.Context) error {
		work(ctx) //rlockvet:ignore it has to outlive the section
		work(ctx) // want `ctx is from outside of this Do`
		//rlockvet:ignore so has this
		work(ctx)
		work(ctx) // want `ctx is from outside of this Do`
		work(ctx) //rlockvet:ignore // want `pass that \(//rlockvet:ignore needs a reason\)$`
		return nil
	})
}
