// Package rlockgoredis provides locks for a program with a go-redis client:
//
//	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379"})
//	client, err := rlockgoredis.Open(rdb, rlock.Options{})
//	…
//	defer client.Close()
//
// The locks use their own rueidis connections to the same Redis, because waiters share subscriptions, which go-redis does not support.
// Closing the Client closes these connections and not rdb; closing rdb does not affect the locks.
//
// For sentinels use [OpenOptions]: a client from redis.NewFailoverClient does not know their addresses.
//
// # Options used
//
//   - Addresses: Network, Addr, Addrs, MasterName, SentinelAddrs, IsClusterMode, DB, Dialer, TLSConfig. A Dialer makes its own TLS
//     connections, as in go-redis; on a cluster with TLS, set TLSConfig as well, so that the nodes' TLS ports are used.
//   - Credentials: Username, Password, CredentialsProvider, CredentialsProviderContext, SentinelUsername, SentinelPassword, ClientName. As
//     in go-redis, a user without a password does not log in. With a ClientName, rlock show does not find the holders' hosts.
//   - Protocol, DisableIdentity.
//   - DialTimeout. go-redis's default of 5 s becomes 2 s: see [rlock.OpenWith].
//
// # Options refused
//
//   - A redis.Ring: its hash puts keys on independent servers. Open one of these servers, or use [rlock.Quorum].
//   - StreamingCredentialsProvider: rueidis would not log in again. With sentinels also CredentialsProvider and CredentialsProviderContext:
//     rueidis would show these credentials to the sentinels. Use [rlock.OpenWith] and AuthCredentialsFn.
//   - ClusterSlots: such servers are not a cluster.
//
// # Options without effect
//
//   - Hooks, OnConnect, Limiter, NewClient, and all options for pools, pipelines, buffers, retries and caches: they concern go-redis's
//     connections.
//   - ReadTimeout and WriteTimeout: a connection counts as dead after 3 s of silence.
//   - ReadOnly, ReplicaOnly, RouteByLatency and the like: locks are only on masters.
//   - MaintNotificationsConfig: when a server goes into maintenance, the locks reconnect. No hold is lost unless its lease expires first.
package rlockgoredis
