package main

import (
	"context"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

// openRueidislock opens it for so many keys of a majority: 2 of 3 is its default, 1 of 1 is what is
// enough on one server, and cheaper. With noLoop the server does not tell it of what it did itself; without, each
// extension of a hold is told to it, and makes it extend the hold again.
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
