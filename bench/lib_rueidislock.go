package main

import (
	"context"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

// openRueidislock opens it with a majority of keys: 2 of 3 is its default; 1 of 1 suffices on one server, and is cheaper. noLoop suppresses
// notifications of its own writes; without it, each extension of a hold notifies the client, which extends the hold again.
func openRueidislock(majority int32, noLoop bool) func(o openOptions) (*client, error) {
	return func(o openOptions) (*client, error) {
		locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
			ClientOption:   rueidis.ClientOption{InitAddress: []string{o.addr}},
			KeyMajority:    majority,
			KeyValidity:    o.lease,
			NoLoopTracking: noLoop,
		})
		if err != nil {
			return nil, err
		}
		return &client{
			mutex: func(name string) lockFunc {
				return func(ctx context.Context) (func() error, error) {
					_, cancel, err := locker.WithContext(ctx, name)
					return func() error { cancel(); return nil }, err
				}
			},
			close: locker.Close,
		}, nil
	}
}
