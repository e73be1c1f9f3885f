package lua_test

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/lua"
)

// poor is a user who lacks one right at a time, on a server of its own.
type poor struct {
	lab

	limited rueidis.Client
}

func newPoor(t *testing.T) poor {
	t.Helper()
	s := redistest.Start(t)
	return poor{newLab(t, s.Client(t)), user(t, s, "~* &* +@all")}
}

func (p poor) admin(cmd ...string) rueidis.RedisResult {
	return p.rdb.Do(p.t.Context(), p.rdb.B().Arbitrary(cmd...).Build())
}

// without makes a call that lacks a right.
func (p poor) without(right string, call func(c rueidis.Client) error) error {
	p.t.Helper()
	require.NoError(p.t, p.admin("ACL", "SETUSER", "tester", "-"+right).Error())
	err := call(p.limited)
	require.NoError(p.t, p.admin("ACL", "SETUSER", "tester", "+"+right).Error())
	return err
}

// used returns the rights that a call needs.
func (p poor) used(call func(c rueidis.Client) error) (all []string) {
	p.t.Helper()
	before := redistest.Commands(p.t, p.rdb)
	require.NoError(p.t, call(p.limited))
	for name, n := range redistest.Commands(p.t, p.rdb) {
		right, _, _ := strings.Cut(name, "|")
		if n > before[name] && !slices.Contains([]string{"info", "evalsha", "eval", "hello", "client", "ping"}, right) {
			all = append(all, right)
		}
	}
	return all
}

// forEver returns the keys without an expiry.
func (p poor) forEver() (all []string) {
	p.t.Helper()
	keys, err := p.admin("KEYS", "*").AsStrSlice()
	require.NoError(p.t, err)
	for _, key := range keys {
		if p.number("PTTL", key) == -1 {
			all = append(all, key)
		}
	}
	return all
}

// Whatever right is missing, a failed call leaves no key without an expiry, except the keys that have none by their format.
func TestMissingRightLeavesNoKeyWithoutExpiry(t *testing.T) {
	t.Parallel()
	p := newPoor(t)
	l, first := p.lab, p.process(1)
	type call func(c rueidis.Client) error
	acquire := func(owner string, change func(a *lua.AcquireArgs)) call {
		return func(c rueidis.Client) error {
			a := lua.AcquireArgs{Name: l.name, Owner: owner, Lease: lease, Count: 1, Publish: lua.Publish{Name: l.channel}}
			change(&a)
			_, err := lua.Acquire(t.Context(), c, a)
			return err
		}
	}
	release := func(change func(a *lua.ReleaseArgs)) call {
		return func(c rueidis.Client) error {
			a := lua.ReleaseArgs{Name: l.name, Owner: me, Lease: lease, Publish: lua.Publish{Name: l.channel}}
			change(&a)
			_, err := lua.Release(t.Context(), c, a)
			return err
		}
	}
	after := func(calls ...call) call {
		return func(c rueidis.Client) error {
			for _, each := range calls {
				if err := each(c); err != nil {
					return err
				}
			}
			return nil
		}
	}
	inFair := lua.Fair{List: l.name + ":list", Times: l.name + ":times", Place: lease, GrantLease: grantLease}
	publish := lua.Publish{Name: l.channel}
	twice := func(a *lua.AcquireArgs) { a.Count = 2 }
	plain := func(a *lua.AcquireArgs) { a.Queue, a.GrantLease = l.queue, grantLease }
	fenced := func(a *lua.AcquireArgs) { plain(a); a.Fence = l.fence }
	fair := func(a *lua.AcquireArgs) { a.Fair, a.Join = inFair, true }
	read := func(a *lua.AcquireArgs) { a.Side = lua.Reader }
	readMarked := func(a *lua.AcquireArgs) { a.Side, a.Queue = lua.Reader, l.queue }
	readAgain := func(a *lua.AcquireArgs) { read(a); twice(a) }
	write := func(a *lua.AcquireArgs) { a.Side, a.Queue = lua.Writer, l.queue }
	within := func(a *lua.AcquireArgs) { write(a); a.Within = me }
	readWithin := func(a *lua.AcquireArgs) { a.Side, a.Within = lua.Reader, me+":write" }
	queue := lua.Queue{Key: l.queue, GrantLease: grantLease}
	ticket := uuid + ":000123"
	rows := map[string]struct{ before, call call }{
		"plain":                   {nil, acquire(me, plain)},
		"plain, again":            {acquire(me, plain), acquire(me, twice)},
		"plain, held":             {acquire(other, plain), acquire(me, plain)},
		"fenced":                  {nil, acquire(me, fenced)},
		"fair":                    {nil, acquire(me, fair)},
		"fair, held":              {acquire(other, fair), acquire(me, fair)},
		"read":                    {nil, acquire(me, read)},
		"read, again":             {acquire(me, read), acquire(me, readAgain)},
		"read beside a reader":    {acquire(other, read), acquire(me, read)},
		"read in a write":         {acquire(me+":write", write), acquire(me, readWithin)},
		"read behind a mark":      {after(acquire(other, read), acquire(waiter(1)+":write", write)), acquire(me, readMarked)},
		"write":                   {nil, acquire(me+":write", write)},
		"write, held":             {acquire(other, read), acquire(me+":write", write)},
		"upgrade":                 {acquire(me, read), acquire(me+":write", within)},
		"plain, left to a ticket": {acquire(me, plain), release(func(a *lua.ReleaseArgs) { a.Ticket, a.Taken = ticket, time.Now().Add(lease) })},
		"fenced, from a ticket":   {acquire(ticket, fenced), acquire(me, func(a *lua.AcquireArgs) { a.Fence, a.Ticket = l.fence, ticket })},
		"plain, left taken":       {acquire(me, plain), release(func(a *lua.ReleaseArgs) { *a = l.leaveTaken() })},
		"partial release":         {after(acquire(me, plain), acquire(me, twice)), release(func(a *lua.ReleaseArgs) { a.Count = 1 })},
		"partial release of a reader": {after(acquire(me, read), acquire(me, readAgain)), release(func(a *lua.ReleaseArgs) {
			a.Side, a.Count = lua.Reader, 1
		})},
		"release":            {acquire(me, plain), release(func(a *lua.ReleaseArgs) { a.Queue = queue })},
		"hand-off":           {acquire(me, fenced), release(func(a *lua.ReleaseArgs) { a.Next, a.Stay, a.Fence = next, true, l.fence })},
		"grant":              {after(acquire(me, plain), acquire(waiter(1), plain)), release(func(a *lua.ReleaseArgs) { a.Queue = queue })},
		"grant with a token": {after(acquire(me, fenced), acquire(waiter(1), fenced)), release(func(a *lua.ReleaseArgs) { a.Queue, a.Fence = queue, l.fence })},
		"grant, and a place for the next": {after(acquire(me, plain), acquire(waiter(1), plain)), release(func(a *lua.ReleaseArgs) {
			a.Queue, a.Next = queue, next
		})},
		"a place for the next alone":  {acquire(me, plain), release(func(a *lua.ReleaseArgs) { a.Queue, a.Next = queue, next })},
		"release of a reader":         {after(acquire(me, read), acquire(other, read)), release(func(a *lua.ReleaseArgs) { a.Side, a.Key = lua.Reader, l.queue })},
		"release of the last reader":  {acquire(me, read), release(func(a *lua.ReleaseArgs) { a.Side, a.Key = lua.Reader, l.queue })},
		"release of a writer":         {acquire(me+":write", write), release(func(a *lua.ReleaseArgs) { a.Side, a.Key, a.Owner = lua.Writer, l.queue, me+":write" })},
		"release of a writer, a read": {after(acquire(me+":write", write), acquire(me, readWithin)), release(func(a *lua.ReleaseArgs) { a.Side, a.Key, a.Owner = lua.Writer, l.queue, me+":write" })},
		"fair, released":              {after(acquire(me, fair), acquire(waiter(1), fair)), release(func(a *lua.ReleaseArgs) { a.Fair = inFair })},
		"fair, granted":               {after(acquire(fairOwner(0), fair), acquire(fairOwner(1), fair)), release(func(a *lua.ReleaseArgs) { a.Owner, a.Fair = fairOwner(0), inFair })},
		"fair, refreshed": {after(acquire(other, fair), acquire(me, fair)), func(c rueidis.Client) error {
			_, err := lua.Refresh(t.Context(), c, inFair, publish, []lua.Place{{Name: l.name, Owner: me, List: inFair.List, Times: inFair.Times, Channel: l.channel}})
			return err
		}},
		"fair, forced, with queue": {func(c rueidis.Client) error {
			l.must("RPUSH", inFair.List, uuid+":01")
			l.must("ZADD", inFair.Times, "9e15", uuid+":01")
			return acquire(other, fair)(c)
		}, func(c rueidis.Client) error {
			_, err := lua.ForceFair(t.Context(), c, l.name, inFair, publish)
			return err
		}},
		"reader renewed": {acquire(me, read), func(c rueidis.Client) error {
			_, err := lua.RenewReaders(t.Context(), c, long, []lua.Hold{{Name: l.name, Owner: me}})
			return err
		}},
		"all": {nil, func(c rueidis.Client) error {
			_, err := lua.AcquireAll(t.Context(), c, []lua.AcquireArgs{
				{Name: l.name, Owner: me, Lease: lease, Count: 1}, {Name: "b:{" + l.name + "}", Owner: other, Lease: lease, Count: 1, Fence: l.fence},
			})
			return err
		}},
	}
	failures := 0
	for name, row := range rows {
		prepare := func() {
			require.NoError(t, p.admin("FLUSHALL").Error())
			if row.before != nil {
				require.NoError(t, row.before(l.rdb), name)
			}
		}
		prepare()
		for _, right := range p.used(row.call) {
			prepare()
			if p.without(right, row.call) != nil {
				failures++
			}
			first.said()
			for _, key := range p.forEver() {
				if key != l.fence && key != inFair.List && key != inFair.Times {
					t.Errorf("%s without %s: %s has no expiry", name, right, key)
				}
			}
			llen, zcard := l.number("LLEN", inFair.List), l.number("ZCARD", inFair.Times)
			if right != "lpop" && right != "zrem" { // after the lock was given
				require.Equal(t, llen, zcard, name+" without "+right)
			}
		}
	}
	require.Greater(t, failures, 100)
}

// A call that changes a semaphore or a latch fails as a whole if a right is missing: no permit and no count is lost or gained, and its
// repeat with the right has the effect and the reply of one call. No key is left without an expiry, except the counters and the permits.
func TestMissingRightChangesNoCount(t *testing.T) {
	t.Parallel()
	p := newPoor(t)
	s := permits{sem: sem{lab: p.lab, requests: "requests:{" + p.name + "}"}, timeouts: "timeouts:{" + p.name + "}", slots: "slots:{" + p.name + "}"}
	record := "record:{" + p.name + "}"
	first := s.process(1)
	type call func(c rueidis.Client) (any, error)
	use := func(i int, request int64, change func(a *lua.SemaphoreArgs)) call {
		return func(c rueidis.Client) (any, error) {
			s.numbers = make(map[int]int64)
			a := s.sem.request(i)
			a.Request = request
			change(&a)
			r, err := lua.UseSemaphore(t.Context(), c, a)
			r.Again = 0
			return r, err
		}
	}
	lend := func(i int, request int64, change func(a *lua.PermitsArgs)) call {
		return func(c rueidis.Client) (any, error) {
			s.numbers = make(map[int]int64)
			a := s.request(i)
			a.Request = request
			change(&a)
			r, err := lua.UsePermits(t.Context(), c, a)
			r.Again = 0
			return r, err
		}
	}
	latch := func(number uint64, do func(ctx context.Context, c rueidis.Client, a lua.LatchCall) (bool, error)) call {
		return func(c rueidis.Client) (any, error) {
			a := lua.LatchCall{Name: p.name, Record: record, Client: uuid, Number: number, Keep: kept, Publish: lua.Publish{Name: p.channel}}
			return do(t.Context(), c, a)
		}
	}
	setLatch := func(n int64) call {
		return latch(1, func(ctx context.Context, c rueidis.Client, a lua.LatchCall) (bool, error) {
			return lua.SetCount(ctx, c, a, n)
		})
	}
	down := latch(2, func(ctx context.Context, c rueidis.Client, a lua.LatchCall) (bool, error) {
		return lua.CountDown(ctx, c, a, 1)
	})
	remove := latch(2, lua.DeleteLatch)
	three := use(9, 1, func(a *lua.SemaphoreArgs) { a.Change, a.N = lua.TrySet, 3 })
	threeLent := lend(9, 1, func(a *lua.PermitsArgs) { a.Change, a.N = lua.TrySet, 3 })
	waits := use(1, 1, func(a *lua.SemaphoreArgs) { a.Wants, a.Waits = []int64{5}, true })
	lentWaits := lend(1, 1, func(a *lua.PermitsArgs) { a.Wants, a.IDs, a.Waits = []int64{2}, ids(11, 12), true })
	lent := lend(8, 1, func(a *lua.PermitsArgs) { a.Wants, a.IDs = []int64{2}, ids(1, 2) })
	expire := func(rueidis.Client) (any, error) { s.expire(time.Minute, ids(1, 2)...); return nil, nil }
	rows := map[string]struct {
		before []call
		call   call
	}{
		"set":                    {nil, three},
		"add":                    {[]call{three}, use(2, 1, func(a *lua.SemaphoreArgs) { a.N = 1 })},
		"add to none":            {nil, use(2, 1, func(a *lua.SemaphoreArgs) { a.N = 1 })},
		"add if there":           {[]call{three}, use(2, 1, func(a *lua.SemaphoreArgs) { a.Change, a.N = lua.AddIfExists, 1 })},
		"drain":                  {[]call{three}, use(2, 1, func(a *lua.SemaphoreArgs) { a.Change = lua.Drain })},
		"take":                   {[]call{three}, use(2, 1, func(a *lua.SemaphoreArgs) { a.Wants = []int64{1} })},
		"take some, and wait":    {[]call{three}, use(2, 1, func(a *lua.SemaphoreArgs) { a.Wants, a.Waits = []int64{2, 2}, true })},
		"take behind a waiter":   {[]call{three, waits}, use(2, 1, func(a *lua.SemaphoreArgs) { a.Wants = []int64{1} })},
		"wait behind a waiter":   {[]call{three, waits}, use(2, 1, func(a *lua.SemaphoreArgs) { a.Wants, a.Waits = []int64{4}, true })},
		"add beside a waiter":    {[]call{three, waits}, use(2, 1, func(a *lua.SemaphoreArgs) { a.N = 2 })},
		"cancel":                 {[]call{three, use(2, 1, func(a *lua.SemaphoreArgs) { a.Wants = []int64{2} })}, use(2, 1, func(a *lua.SemaphoreArgs) { a.Wants, a.Cancel = []int64{2}, true })},
		"waiter leaves":          {[]call{three, waits}, use(1, 2, func(a *lua.SemaphoreArgs) { a.Waits = true })},
		"permits: set":           {nil, threeLent},
		"permits: total":         {[]call{threeLent}, lend(2, 1, func(a *lua.PermitsArgs) { a.Change, a.N = lua.SetTotal, 7 })},
		"permits: total of none": {nil, lend(2, 1, func(a *lua.PermitsArgs) { a.Change, a.N = lua.SetTotal, 0 })},
		"permits: take":          {[]call{threeLent}, lend(2, 1, func(a *lua.PermitsArgs) { a.Wants, a.IDs = []int64{1, 1}, ids(1, 2) })},
		"permits: give":          {[]call{threeLent, lent}, lend(8, 2, func(a *lua.PermitsArgs) { a.Release = ids(1, 2) })},
		"permits: give and wait": {[]call{threeLent, lent}, lend(8, 2, func(a *lua.PermitsArgs) {
			a.Release, a.Wants, a.IDs, a.Waits = ids(1, 1), []int64{3}, ids(21, 23), true
		})},
		"permits: give, one waits": {[]call{threeLent, lent, lentWaits}, lend(8, 2, func(a *lua.PermitsArgs) { a.Release = ids(1, 1) })},
		"permits: give, to one in line": {[]call{threeLent, lent, lend(1, 1, func(a *lua.PermitsArgs) {
			a.Change, a.Wants, a.IDs, a.Waits, a.Offers = lua.Drain, []int64{1}, ids(11, 11), true, true
		})}, lend(8, 2, func(a *lua.PermitsArgs) { a.Release = ids(1, 1) })},
		"permits: swap":    {[]call{threeLent, lent}, lend(8, 2, func(a *lua.PermitsArgs) { a.Release, a.Wants, a.IDs = ids(1, 2), []int64{1}, ids(21, 21) })},
		"permits: expired": {[]call{threeLent, lent, expire}, lend(2, 1, func(a *lua.PermitsArgs) { a.Wants, a.IDs = []int64{3}, ids(21, 23) })},
		"permits: cancel":  {[]call{threeLent, lent}, lend(8, 1, func(a *lua.PermitsArgs) { a.Wants, a.IDs, a.Cancel = []int64{2}, ids(1, 2), true })},
		"latch: set":       {nil, setLatch(2)},
		"latch: down":      {[]call{setLatch(2)}, down},
		"latch: down to 0": {[]call{setLatch(1)}, down},
		"latch: delete":    {[]call{setLatch(2)}, remove},
		"latch: set again": {[]call{setLatch(2)}, latch(2, func(ctx context.Context, c rueidis.Client, a lua.LatchCall) (bool, error) {
			return lua.SetCount(ctx, c, a, 5)
		})},
	}
	look := func() [3]string {
		count, _ := s.do("GET", p.name).ToString()
		held, _ := s.do("ZRANGE", s.timeouts, "0", "-1").AsStrSlice()
		slots, _ := s.do("ZRANGE", s.slots, "0", "-1").AsStrSlice()
		return [3]string{count, strings.Join(held, ","), strings.Join(slots, ",")}
	}
	failures := 0
	for name, row := range rows {
		prepare := func() [3]string {
			require.NoError(t, p.admin("FLUSHALL").Error())
			for _, each := range row.before {
				_, err := each(p.rdb)
				require.NoError(t, err, name)
			}
			return look()
		}
		prepare()
		var want any
		used := p.used(func(c rueidis.Client) (err error) { want, err = row.call(c); return err })
		then := look()
		for _, right := range used {
			before := prepare()
			err := p.without(right, func(c rueidis.Client) error { _, err := row.call(c); return err })
			what := name + " without " + right
			if err != nil && !strings.Contains(err.Error(), "UNTOLD") {
				failures++
				if got := look(); got != before {
					t.Errorf("%s failed (%v), and changed\n%q\nto\n%q", what, err, before, got)
				}
			}
			for _, key := range p.forEver() {
				if key != p.name && key != s.timeouts && key != s.slots {
					t.Errorf("%s: %s has no expiry", what, key)
				}
			}
			if err == nil && (right == "publish" || right == "pubsub") && strings.HasSuffix(name, "to one in line") {
				kept := id(2)
				require.Equal(t, [3]string{"1", string(kept[:]), string(kept[:])}, look(), what) // the other is free, and nobody is told
				continue
			}
			got, err := row.call(p.rdb)
			if err != nil || !reflect.DeepEqual(got, want) || look() != then {
				t.Errorf("%s: the repeat says %v, %v and not %v, and leaves\n%q\nand not\n%q", what, got, err, want, look(), then)
			}
			first.said()
		}
	}
	require.Greater(t, failures, 100)
}

// A refused request is not recorded as one that has run, also if the user may delete nothing: it can still be made.
func TestRefusedRequestIsNotRecorded(t *testing.T) {
	t.Parallel()
	p := newPoor(t)
	s := sem{lab: p.lab, requests: "requests:{" + p.name + "}", numbers: make(map[int]int64)}
	a := s.request(1)
	a.N = 2
	s.must("SET", s.name, "text")
	err := p.without("del", func(c rueidis.Client) error { _, err := lua.UseSemaphore(t.Context(), c, a); return err })
	require.ErrorIs(t, err, lua.ErrNoCounter)
	s.set(1)
	require.Equal(t, lua.SemaphoreReply{Free: 3, Done: 1}, s.use(a))
	require.EqualValues(t, 3, s.free())
}
