package main

import (
	"context"
	"database/sql"
	"errors"

	"github.com/go-rlock/rlock/rlock"
)

const (
	// token is the highest token that the row has seen.
	createTable = `CREATE TABLE IF NOT EXISTS rlock_accounts (
		name    text   PRIMARY KEY,
		balance bigint NOT NULL,
		token   bigint NOT NULL DEFAULT 0
	)`

	// Both find no row after a write with a higher token.
	readAccount  = `UPDATE rlock_accounts SET token = $2 WHERE name = $1 AND token <= $2 RETURNING balance`
	writeAccount = `UPDATE rlock_accounts SET token = $2, balance = $3 WHERE name = $1 AND token <= $2 RETURNING balance`
)

var errRefused = errors.New("refused: a later section was here, or there is no such account")

// deposit adds an amount to an account's balance.
func deposit(ctx context.Context, lock *rlock.Mutex, db *sql.DB, account string, amount int64) error {
	return lock.Do(ctx, func(ctx context.Context) error {
		token, _ := lock.FencingToken(ctx)
		balance, err := update(ctx, db, readAccount, account, token)
		if err != nil {
			return err
		}
		_, err = update(ctx, db, writeAccount, account, token, balance+amount)
		return err
	})
}

// update runs one of the two statements, and returns the new balance.
func update(ctx context.Context, db *sql.DB, statement string, arguments ...any) (balance int64, err error) {
	err = db.QueryRowContext(ctx, statement, arguments...).Scan(&balance)
	if errors.Is(err, sql.ErrNoRows) {
		err = errRefused
	}
	return balance, err
}
