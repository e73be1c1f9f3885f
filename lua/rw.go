package lua

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/redis/rueidis"
)

var (
	readRenewScript   = script{Text("read_renew"), "239eb53fccbbaa8455c0bbcb54e3410e73f3a20d"}
	fencedWriteScript = script{Text("fenced_write_acquire"), "2e787c2511ac6336989e64a5dae289e365b2f035"}
	rwForceScript     = script{Text("rw_force"), "ac46451a671dec20fa19abd5f5afd960b928a7ee"}
)

// Side says whether a lock is a read/write lock, and which of its sides a call is for.
type Side int8

const (
	Whole Side = iota // a lock without sides
	Reader
	Writer // its owner fields end with ":write"
)

// mode is the entry of a read/write lock's hash while it is held on that side.
func (s Side) mode() string { return [...]string{Reader: "read", Writer: "write"}[s] }

var (
	acquireScripts = [...]script{
		Whole:  acquireScript,
		Reader: {Text("read_acquire"), "c767467325e0f8c63ed7b8d483180e14cf570bdb"},
		Writer: {Text("write_acquire"), "04095ab114a03fefb20998bad5a91197234cbfb3"},
	}
	releaseScripts = [...]script{
		Whole:  releaseScript,
		Reader: {Text("read_release"), "19db4128004d3a94f8b56faf7b9dd7b49280dde4"},
		Writer: {Text("write_release"), "590d74afb678fd1cf02a7920b6ea7cfb93a9c70a"},
	}
)

// RenewReaders is Renew for readers, each of which may have a lease of its own.
func RenewReaders(ctx context.Context, c rueidis.Client, lease time.Duration, holds []Hold) ([]Renewal, error) {
	keys := make([]string, len(holds))
	args := make([]string, 0, 2*len(holds))
	for i, h := range holds {
		keys[i] = h.Name
		args = append(args, h.Owner, millis(cmp.Or(h.Lease, lease)))
	}
	return verdicts("renew", readRenewScript.run(ctx, c, keys, args...), len(holds))
}

// ForceSide is Force for a read/write lock that is held on that side.
func ForceSide(ctx context.Context, c rueidis.Client, name string, s Side, p Publish, owners ...string) (bool, error) {
	held, err := yes(rwForceScript.run(ctx, c, []string{name}, append([]string{s.mode(), p.command(), p.Name}, owners...)...))
	if err != nil {
		return false, failed("force", err)
	}
	return held, nil
}

// IsLocked reports whether a read/write lock is held on that side: by a writer, or by readers, including those in a
// writer's section.
func IsLocked(ctx context.Context, c rueidis.Client, name string, s Side) (bool, error) {
	b := c.B()
	replies := c.DoMulti(ctx, b.Hget().Key(name).Field("mode").Build(), b.Hlen().Key(name).Build())
	mode, err := replies[0].ToString()
	if errors.Is(err, rueidis.Nil) {
		return false, nil
	}
	fields, err2 := replies[1].AsInt64()
	if err == nil {
		err = err2
	}
	if err != nil {
		return false, failed("IsLocked", err)
	}
	return mode == s.mode() || s == Reader && mode == Writer.mode() && fields > 2, nil
}
