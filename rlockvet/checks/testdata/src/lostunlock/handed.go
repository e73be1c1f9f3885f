package lostunlock

import (
	"context"
	"errors"

	"github.com/go-rlock/rlock/rlock"
)

// Downgrade and Export are unlocks, too. On error the writer is still the writer.

func downgraded(ctx context.Context, rw *rlock.RWMutex) (err error) {
	writer, unlockWriter, err := rw.Write().Lock(ctx)
	if err != nil {
		return err
	}
	reader, unlock, err := rw.Downgrade(writer)
	if err != nil {
		return errors.Join(err, unlockWriter())
	}
	defer func() { err = errors.Join(err, unlock()) }()
	return work(reader)
}

func exported(ctx context.Context, m *rlock.Mutex, send func(string) error) error {
	held, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	ticket, err := rlock.Export(held)
	if err != nil {
		return errors.Join(err, unlock())
	}
	return send(ticket)
}

func downgradedByAnother(ctx context.Context, rw *rlock.RWMutex, m *rlock.Mutex) (err error) {
	_, unlock, err := m.Lock(ctx) // want `unlock is not called on every path`
	if err != nil {
		return err
	}
	_, unlockReader, err := rw.Downgrade(ctx)
	if err != nil {
		return errors.Join(err, unlock())
	}
	return unlockReader()
}
