// Package rlockgoredis makes locks for a program that has a go-redis client:
//
//	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379"})
//	client, err := rlockgoredis.Open(rdb, rlock.Options{})
//	…
//	defer client.Close()
//
// The locks get connections of their own to the same Redis, by rueidis, since waiters share subscriptions that go-redis does not offer.
// Closing the Client closes these, and leaves rdb as it is; closing rdb does nothing to the locks.
//
// For sentinels use [OpenOptions]: a client from redis.NewFailoverClient does not say where they are.
//
// # What is taken over
//
//   - where Redis is: Network, Addr, Addrs, MasterName, SentinelAddrs, IsClusterMode, DB, Dialer, TLSConfig. A Dialer makes the TLS
//     connections of its own, as in go-redis; on a cluster with TLS, set TLSConfig as well, so that the nodes' TLS ports are used.
//   - who connects: Username, Password, CredentialsProvider, CredentialsProviderContext, SentinelUsername, SentinelPassword, ClientName.
//     With a ClientName, rlock show does not find the hosts of holders.
//   - Protocol, DisableIdentity.
//   - DialTimeout, but for go-redis's default of 5 s, which becomes 2 s: see [rlock.OpenWith].
//
// # What is refused
//
//   - A redis.Ring: its keys are on independent servers, by a hash of its own. Open one of them, or use [rlock.Quorum].
//   - StreamingCredentialsProvider, and with sentinels CredentialsProvider and CredentialsProviderContext: rueidis would not log in again,
//     and show the sentinels these credentials. Use [rlock.OpenWith] and AuthCredentialsFn.
//   - ClusterSlots: such servers are no cluster.
//
// # What has no effect
//
//   - Hooks, OnConnect, Limiter, NewClient and all about pools, pipelines, buffers, retries and caches: they belong to go-redis's connections.
//   - ReadTimeout and WriteTimeout: a connection counts as dead when it has been silent for 3 s.
//   - ReadOnly, ReplicaOnly and RouteByLatency and the like: locks are only on masters.
//   - MaintNotificationsConfig: when a server goes for maintenance, the locks connect again. No hold is lost, unless its lease ends before that.
package rlockgoredis
