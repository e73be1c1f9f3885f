package lua_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/require"
	"github.com/go-rlock/rlock/lua"
)

// FuzzSemaphoreReplies turns the input into RESP values, and compares the functions' results with the only values that mean success.
func FuzzSemaphoreReplies(f *testing.F) {
	number := func(n byte) []byte { return []byte{':', n} }
	list := func(n byte, of ...byte) (all []byte) {
		all = []byte{'*', n}
		for _, i := range of {
			all = append(all, number(i)...)
		}
		return all
	}
	for _, granted := range [][]byte{list(0), list(1, 1), list(1, 2), list(2, 1, 2), list(2, 2, 1), list(1, 3), list(1, 0), number(1)} {
		for _, again := range []byte{0, 5, 0xff} {
			f.Add(append(append(append(list(4, 7, 1), number(again)...), granted...), 0))
		}
	}
	f.Add(list(4, 1, 2, 3, 4))
	f.Add(list(4, 1, 0, 0xff, 0xfe))
	f.Add(list(2, 1, 2))
	f.Add([]byte{'_', 0})
	p := &parrot{}
	c := p.client(f)
	f.Fuzz(func(t *testing.T, in []byte) {
		text, _ := value(in, 0)
		for _, reply := range []string{text, wrapped(in, 4), wrapped(in, 7)} {
			p.say(reply)
			v, _ := parsed(reply)
			want, ok := semaphoreReply(v, 4)
			a := lua.SemaphoreArgs{Wants: []int64{1, 1}}
			got, err := lua.UseSemaphore(t.Context(), c, a)
			if (err == nil) != ok || fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("%q is %+v, %v", reply, got, err)
			}
			want, ok = semaphoreReply(v, 7)
			b := lua.PermitsArgs{SemaphoreArgs: a, IDs: ids(1, 2), Release: ids(3, 3)}
			permits, err := lua.UsePermits(t.Context(), c, b)
			if ok {
				slots, given, more := v.list[4], v.list[5], v.list[6]
				ok = slots.areNumbers() && given.areNumbers() && more.isNumber && len(slots.list) == len(want.Granted) &&
					len(given.list) == 1 && given.list[0].n >= 0 && given.list[0].n <= 2 && (more.n == 0 || more.n == 1)
			}
			if (err == nil) != ok || ok && fmt.Sprint(permits.SemaphoreReply) != fmt.Sprint(want) {
				t.Fatalf("%q is %+v, %v", reply, permits, err)
			}
			_, err = lua.RenewPermits(t.Context(), c, time.Second, []lua.PermitsToRenew{{Timeouts: "t", IDs: ids(1, 2)}})
			ok = v.areNumbers() && len(v.list) == 2 && v.list[0].n >= -1 && v.list[0].n <= 1 && v.list[1].n >= -1 && v.list[1].n <= 1
			if (err == nil) != ok {
				t.Fatalf("%q renews: %v", reply, err)
			}
			_, err = lua.LookPermits(t.Context(), c, lua.PermitSemaphore{}, nil)
			if (err == nil) != (v.areNumbers() && len(v.list) == 4) {
				t.Fatalf("%q is looked at: %v", reply, err)
			}
			held, err := lua.SetPermitLease(t.Context(), c, lua.PermitSemaphore{}, id(1), time.Second)
			if held != (v.isNumber && v.n == 1) || (err == nil) != (v.isNumber && (v.n == 0 || v.n == 1)) {
				t.Fatalf("%q sets a lease: %t, %v", reply, held, err)
			}
		}
	})
}

// wrapped returns an array of n values.
func wrapped(in []byte, n int) string {
	reply := fmt.Sprintf("*%d\r\n", n)
	for range n {
		var item string
		item, in = value(in, 1)
		reply += item
	}
	return reply
}

// resp is a number, a list, or something else.
type resp struct {
	isNumber, isList bool
	n                int64
	list             []resp
}

func (v resp) areNumbers() bool {
	for _, item := range v.list {
		if !item.isNumber {
			return false
		}
	}
	return v.isList
}

// parsed reads the first value of a text.
func parsed(text string) (v resp, rest string) {
	line, rest, _ := strings.Cut(text, "\r\n")
	kind, head := line[0], line[1:]
	switch kind {
	case ':':
		n, err := strconv.ParseInt(head, 10, 64)
		return resp{isNumber: err == nil, n: n}, rest
	case '*', '~', '%':
		v.isList = kind != '%'
		n, _ := strconv.Atoi(head)
		n *= width(kind)
		for i := 0; i < n || head == "?" && !strings.HasPrefix(rest, "."); i++ {
			var item resp
			item, rest = parsed(rest)
			v.list = append(v.list, item)
		}
		if head == "?" {
			rest = rest[len(".\r\n"):]
		}
	case '$', '!', '=':
		_, rest, _ = strings.Cut(rest, "\r\n")
	}
	return v, rest
}

// semaphoreReply returns the meaning of a reply with that many parts to a call with two wants.
func semaphoreReply(v resp, parts int) (r lua.SemaphoreReply, ok bool) {
	if !v.isList || len(v.list) != parts || !v.list[0].isNumber || !v.list[1].isNumber || !v.list[2].isNumber || !v.list[3].areNumbers() {
		return r, false
	}
	last := int64(0)
	var granted []int
	for _, item := range v.list[3].list {
		if item.n <= last || item.n > 2 {
			return r, false
		}
		last = item.n
		granted = append(granted, int(item.n-1))
	}
	const longest = int64(1<<63-1) / int64(time.Millisecond)
	again := time.Duration(1<<63 - 1)
	if v.list[2].n <= longest {
		again = time.Duration(max(v.list[2].n, 0)) * time.Millisecond
	}
	return lua.SemaphoreReply{Free: v.list[0].n, Done: v.list[1].n, Granted: granted, Again: again}, true
}

// The replies with a meaning, in Go's terms.
func TestPermitsReply(t *testing.T) {
	t.Parallel()
	p := &parrot{}
	c := p.client(t)
	p.say("*7\r\n:5\r\n:1\r\n:-1\r\n*2\r\n:1\r\n:2\r\n*2\r\n:0\r\n:3\r\n*1\r\n:2\r\n:1\r\n")
	got, err := lua.UsePermits(t.Context(), c, lua.PermitsArgs{
		SemaphoreArgs: lua.SemaphoreArgs{Wants: []int64{1, 1}}, IDs: ids(1, 2), Release: ids(3, 3),
	})
	require.NoError(t, err)
	want := lua.PermitsReply{Slots: []int64{0, 3}, Released: []lua.Given{lua.PermitExpired}, More: true}
	want.Free, want.Done, want.Granted = 5, 1, []int{0, 1}
	require.Equal(t, want, got)
	require.Equal(t, "000000000000000000000000000000ff", lua.PermitID{15: 255}.String())
}
