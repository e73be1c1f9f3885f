package tenure

import (
	"context"
	"fmt"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/lease"
	"github.com/go-rlock/rlock/lua"
)

func (c *Client) renew(ctx context.Context, group any, ttl time.Duration, items []lease.Item) ([]lease.Verdict, error) {
	g := group.(Renewal) //nolint:errcheck // there are no other groups
	holds := make([]lua.Hold, len(items))
	for i, item := range items {
		if holds[i] = lua.Hold(item); item.Lease > 0 {
			holds[i].Lease = Longer(item.Lease, g.grace)
		}
	}
	answers, err := g.Kind.Renew(ctx, c.RDB, Longer(ttl, g.grace), holds)
	c.Calls.Answered(g.Slot, err)
	return Verdicts(answers, err)
}

// Verdicts translates the answers of Redis for the renewer.
func Verdicts(answers []lua.Renewal, err error) ([]lease.Verdict, error) {
	if calls.IsRefusal(err) {
		return nil, fmt.Errorf("%w: %w", lease.ErrRefused, err)
	}
	if err != nil {
		return nil, err
	}
	verdicts := make([]lease.Verdict, len(answers))
	for i, a := range answers {
		switch a {
		case lua.Renewed:
			verdicts[i] = lease.Renewed
		case lua.Gone:
			verdicts[i] = lease.Gone
		default:
			verdicts[i] = lease.Failed
		}
	}
	return verdicts, nil
}
