package lua

import (
	"context"
	_ "embed" // for the script texts below
	"time"

	"github.com/redis/rueidis"
)

var (
	//go:embed read_acquire.lua
	readAcquireText string
	//go:embed read_release.lua
	readReleaseText string
	//go:embed read_renew.lua
	readRenewText string
	//go:embed write_acquire.lua
	writeAcquireText string
	//go:embed write_release.lua
	writeReleaseText string
	//go:embed rw_force.lua
	rwForceText string

	readRenewScript = script{Text(readRenewText), "53e678dd2cde875c08f9a922d56ebc86a6dfdf02"}
	rwForceScript   = script{Text(rwForceText), "b1cef729e28921cf35d1cbcbb7434c08194ed8e6"}
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
		Reader: {Text(readAcquireText), "ec082d1a72111755fa049622f5261e83e612e5ec"},
		Writer: {Text(writeAcquireText), "3195694d11ad4f76e0a0699dd1eaf2a9cfa0d690"},
	}
	releaseScripts = [...]script{
		Whole:  releaseScript,
		Reader: {Text(readReleaseText), "81182f6aaa03d6c076db78282b9c9cab7891dead"},
		Writer: {Text(writeReleaseText), "eded8ef918b012b5b58b9459f65bd93ed6373170"},
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
