package quorum

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/internal/testing/enginetest"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// I5: a quorum's hold is trusted while a majority of the servers has it, minus the drift. A renewed share counts until its new expiry, a
// missing share not at all.
func TestTrust(t *testing.T) {
	rdb := redistest.Dial(t, redistest.Shared(t))
	var members []*tenure.Lock
	for i := range 5 {
		c := enginetest.Start(t, rdb)
		name := fmt.Sprint(redistest.Name(t), i)
		m := c.NewLock(name, kinds.Mutex, name, tenure.Terms{Lease: 10 * time.Second})
		members = append(members, m)
	}
	now := time.Now()
	v := &votes{of: New(members[0].Name, members)}
	v.tenure = tenure.MajorityOf(v.of.Whole, v)
	after := func(seconds int) time.Time { return now.Add(time.Duration(seconds) * time.Second) }
	for i, seconds := range []int{5, 3, 1, 2, 4} {
		v.shares = append(v.shares, &share{of: v, tenure: v.tenure.Share(v.of.Members[i]), held: true, until: after(seconds)})
	}
	const allowed = 100*time.Millisecond + 2*time.Millisecond
	trusts := func(seconds int) {
		t.Helper()
		require.Equal(t, after(seconds).Add(-allowed), v.Until())
	}
	trusts(3)
	v.shares[0].held = false
	trusts(2)
	v.shares[1].held = false
	trusts(1)
	v.shares[2].held = false
	require.Zero(t, v.Until())
	v.shares[2].held, v.shares[2].until = true, after(9) // healed
	trusts(2)
	renewed := v.shares[3].tenure
	require.True(t, renewed.Lock.Client.Leases.Keep(&renewed.Lease, tenure.Keeper{Tenure: renewed}, now.Add(8*time.Second), 0))
	require.Less(t, v.Until().Sub(now.Add(4*time.Second-allowed)).Abs(), time.Microsecond)
	renewed.Lock.Client.Leases.Stop(&renewed.Lease)
}
