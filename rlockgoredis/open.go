package rlockgoredis

import (
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/rlock"
)

// Open returns a Client for locks in the Redis of rdb, a [redis.Client] or a [redis.ClusterClient]. It sends nothing through rdb.
//
// It connects at once, as [rlock.OpenWith] does; [rlock.Client.Close] closes these connections. It fails if no server answers, or if rdb
// has an option that the package refuses.
func Open(rdb redis.UniversalClient, o rlock.Options) (*rlock.Client, error) {
	to, err := fromClient(rdb)
	if err != nil {
		return nil, fmt.Errorf("rlockgoredis: %w", err)
	}
	return rlock.OpenWith(to, o)
}

// Config is the options of a go-redis client.
type Config interface {
	*redis.Options | *redis.FailoverOptions | *redis.ClusterOptions | *redis.UniversalOptions
}

// OpenOptions is [Open] for a program with the options of a go-redis client. It does not modify them.
func OpenOptions[C Config](config C, o rlock.Options) (*rlock.Client, error) {
	to, err := fromConfig(config)
	if err != nil {
		return nil, fmt.Errorf("rlockgoredis: %w", err)
	}
	return rlock.OpenWith(to, o)
}

func fromClient(rdb redis.UniversalClient) (none rueidis.ClientOption, err error) {
	switch rdb := rdb.(type) {
	case *redis.Client:
		if rdb == nil {
			break
		}
		o := rdb.Options()
		if o.Addr == failoverAddr {
			return none, errors.New("a failover client does not know its sentinels' addresses: pass its redis.FailoverOptions to OpenOptions")
		}
		return fromConfig(o)
	case *redis.ClusterClient:
		if rdb == nil {
			break
		}
		return fromConfig(rdb.Options())
	case *redis.Ring:
		return none, errors.New("a redis.Ring has its keys on independent servers, but a lock needs one server: " +
			"pass the redis.Options of one of them to OpenOptions, or use rlock.Quorum")
	case nil:
	default:
		return none, fmt.Errorf("a %T does not know its Redis's address: pass its options to OpenOptions", rdb)
	}
	return none, errors.New("the redis client is nil")
}

// failoverAddr is the placeholder address of go-redis's failover clients.
const failoverAddr = "FailoverClient"
