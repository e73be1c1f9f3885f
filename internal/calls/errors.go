package calls

import (
	"errors"
	"net"
	"strings"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/lua"
)

// Errors about Redis, for a caller that left.
var (
	ErrNoAnswer = errors.New("no answer")
	ErrSilent   = errors.New("no answer, nor to other calls") // the call was never sent
)

// ErrRepeated stands for the reply of a command that rueidis sent again by itself: the first copy may have run as well.
var ErrRepeated = errors.New("sent twice, since its connection expired")

// MayHaveRun reports whether the script may have run though the call failed. rueidis.ErrClosing says nothing: a
// sentinel client answers it to the commands under way when it follows another master.
func MayHaveRun(err error) bool {
	var redisErr *rueidis.RedisError
	var op *net.OpError
	switch {
	case errors.As(err, &redisErr) && strings.HasPrefix(redisErr.Error(), "UNTOLD "): // see release.lua
		return true
	case redisErr != nil, errors.Is(err, lua.ErrForeign), errors.Is(err, lua.ErrNoConnection):
		return false
	case errors.As(err, &op):
		return op.Op != "dial"
	}
	return true
}

// IsTransient reports whether err is transient and a retry makes sense: the connection failed, or the server is not ready.
func IsTransient(err error) bool {
	var redisErr *rueidis.RedisError // rueidis.IsRedisErr does not look into wrapped errors
	if !errors.As(err, &redisErr) {
		return !errors.Is(err, lua.ErrForeign) && !errors.Is(err, lua.ErrNoConnection)
	}
	said := lua.Said(redisErr)
	for _, prefix := range []string{
		"LOADING", "BUSY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "READONLY", "MOVED", "ASK",
		"max number of clients", // said instead of taking the connection; rueidis cuts the ERR off
		// A server whose slots change while a script runs; ours have written nothing by then.
		"Script attempted to access a non local key", "Lua script attempted to access a non local key",
	} {
		if strings.HasPrefix(said, prefix) {
			return true
		}
	}
	return false
}

// IsRefusal reports whether Redis refused to run a call. A call for many locks may be refused because of one of them. TRYAGAIN lasts until
// a cluster slot has moved: until then it answers every call with both a key that has moved and one that has not.
func IsRefusal(err error) bool {
	var said *rueidis.RedisError
	return errors.As(err, &said) && (!IsTransient(err) || said.IsTryAgain())
}

// RefusesWrites reports whether Redis refused a call as it does all that write, until it has its memory, its disk or its replicas again.
func RefusesWrites(err error) bool {
	var redisErr *rueidis.RedisError
	if !errors.As(err, &redisErr) {
		return false
	}
	said := lua.Said(redisErr)
	return strings.HasPrefix(said, "OOM") || strings.HasPrefix(said, "MISCONF") || strings.HasPrefix(said, "NOREPLICAS")
}
