package lua

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/rueidis"
)

var renewScript = script{Text("renew"), "dcc8d7c539374c8a7092f80e46e64c50db02e10e"}

// Hold names an owner's hold on a lock.
type Hold struct {
	Name, Owner string
	Lease       time.Duration // of a reader, if different from the call's; sent in whole milliseconds
}

// Renewal is the answer for one hold. The zero value is no answer.
type Renewal int8

const (
	// Renewed means that the expiry is now at least the lease away.
	Renewed Renewal = iota + 1
	// Gone means that the owner does not hold the lock.
	Gone
	// Refused means that Redis could not read this key now, for example because the user may not.
	Refused
)

// Renew extends the expiry of all holds to lease from now and answers for each. On a cluster all names must hash to
// one slot. On a read/write lock it is for writers.
func Renew(ctx context.Context, c rueidis.Client, lease time.Duration, holds []Hold) ([]Renewal, error) {
	return renew(ctx, c, renewScript, lease, holds)
}

func renew(ctx context.Context, c rueidis.Client, s script, lease time.Duration, holds []Hold) ([]Renewal, error) {
	keys := make([]string, len(holds))
	args := make([]string, len(holds)+1)
	args[0] = millis(lease)
	for i, h := range holds {
		keys[i], args[i+1] = h.Name, h.Owner
	}
	return verdicts("renew", s.run(ctx, c, keys, args...), len(holds))
}

// verdicts reads a list of n verdicts.
func verdicts(script string, r rueidis.RedisResult, n int) ([]Renewal, error) {
	reply, err := numbers(r)
	if err != nil {
		return nil, failed(script, err)
	}
	if len(reply) != n {
		return nil, fmt.Errorf("%s script: %d answers for %d holds", script, len(reply), n)
	}
	renewals := make([]Renewal, n)
	for i, said := range reply {
		switch said {
		case 1:
			renewals[i] = Renewed
		case 0:
			renewals[i] = Gone
		case -1:
			renewals[i] = Refused
		default:
			return nil, fmt.Errorf("%s script: unknown answer %d", script, said)
		}
	}
	return renewals, nil
}
