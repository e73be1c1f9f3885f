package lua

import (
	"context"
	"time"

	"github.com/redis/rueidis"
)

var (
	readRenewScript = script{Text("read_renew"), "bf063df80a2d5d794fccbd6f4c64860389c5f9de"}
	rwForceScript   = script{Text("rw_force"), "22a05971c6358ed80700b91c08b01f7f5962c8ba"}
)

// Side says whether a lock is a read/write lock, and for which of its sides a call is.
type Side int8

const (
	Whole Side = iota // a lock without sides
	Reader
	Writer // its owner fields end with ":write"
)

// mode is what the hash of a read/write lock says while it is held on that side.
func (s Side) mode() string { return [...]string{Reader: "read", Writer: "write"}[s] }

var (
	acquireScripts = [...]script{
		Whole:  acquireScript,
		Reader: {Text("read_acquire"), "9210be71a22ab005048b68f3be96fa22f9619af5"},
		Writer: {Text("write_acquire"), "e32570f28d43a423e0899140d2f2e0861669e135"},
	}
	releaseScripts = [...]script{
		Whole:  releaseScript,
		Reader: {Text("read_release"), "27067f0137dedd6f73cddba167584480cfc473a1"},
		Writer: {Text("write_release"), "49ae0038021f77da431f0a5b72d74833a073c827"},
	}
)

// RenewReaders is Renew for readers.
func RenewReaders(ctx context.Context, c rueidis.Client, lease time.Duration, holds []Hold) ([]Renewal, error) {
	return renew(ctx, c, readRenewScript, lease, holds)
}

// ForceSide frees a read/write lock whoever holds it, if it is held on that side, and reports whether it was.
func ForceSide(ctx context.Context, c rueidis.Client, name string, s Side, p Publish) (bool, error) {
	held, err := yes(rwForceScript.run(ctx, c, []string{name}, s.mode(), p.command(), p.Name))
	if err != nil {
		return false, failed("force", err)
	}
	return held, nil
}

// IsLocked reports whether a read/write lock is held on that side: by a writer, or by readers, also such as are in the
// section of a writer.
func IsLocked(ctx context.Context, c rueidis.Client, name string, s Side) (bool, error) {
	b := c.B()
	replies := c.DoMulti(ctx, b.Hget().Key(name).Field("mode").Build(), b.Hlen().Key(name).Build())
	mode, err := replies[0].ToString()
	if rueidis.IsRedisNil(err) {
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
