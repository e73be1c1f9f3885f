package rlock

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/engine"
	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/require"
)

// I5: a quorum's hold is trusted for as long as a majority of the servers has it, less the drift. What a share was renewed to counts,
// and what is missing does not.
func TestQuorumTrust(t *testing.T) {
	rdb := redistest.Dial(t, redistest.Shared(t))
	var members []Locker
	for i := range 5 {
		c, err := New(rdb, Options{})
		require.NoError(t, err)
		t.Cleanup(c.Close)
		members = append(members, c.Mutex(fmt.Sprint(redistest.Name(t), i), WithLease(10*time.Second)))
	}
	q := Quorum(members...)
	require.NoError(t, q.invalid)
	now := time.Now()
	h := &quorumHold{quorum: q}
	after := func(seconds int) time.Time { return now.Add(time.Duration(seconds) * time.Second) }
	for i, seconds := range []int{5, 3, 1, 2, 4} {
		h.shares = append(h.shares, &share{
			of: h, tenure: &engine.Tenure{Spec: q.members[i]}, held: true, until: after(seconds),
		})
	}
	const allowed = 100*time.Millisecond + 2*time.Millisecond
	trusts := func(seconds int) {
		t.Helper()
		require.Equal(t, after(seconds).Add(-allowed), h.trusted())
	}
	trusts(3)
	h.shares[0].held = false
	trusts(2)
	h.shares[1].held = false
	trusts(1)
	h.shares[2].held = false
	require.Zero(t, h.trusted())
	h.shares[2].held, h.shares[2].until = true, after(9) // healed
	trusts(2)
	renewed := h.shares[3].tenure
	require.True(t, renewed.Spec.Engine.Leases.Keep(&renewed.Lease, engine.Keeper{Tenure: renewed}, now.Add(8*time.Second), false))
	require.Less(t, h.trusted().Sub(now.Add(4*time.Second-allowed)).Abs(), time.Microsecond)
	renewed.Spec.Engine.Leases.Stop(&renewed.Lease)
}
