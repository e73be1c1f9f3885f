// Package ticket defines the text form of tickets, which move a hold to another process.
//
// A ticket is a secret: anybody who has it can take the lock. Redis sees only a number derived by SHA-256, which does not reveal the
// secret. The secret itself is never sent to Redis.
package ticket

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"math/big"
	"strings"
)

// Ticket is the content of a ticket's text.
type Ticket struct {
	Kind   byte   // of the lock: a letter from a to z
	Client string // the id of the Client that had the hold: a UUID in canonical form, in lower case
	Secret [secretBytes]byte
	Name   string // of the lock, any bytes, at least one
}

const secretBytes = 16

// New returns a ticket with a new secret.
func New(kind byte, client, name string) Ticket {
	t := Ticket{Kind: kind, Client: client, Name: name}
	_, _ = rand.Read(t.Secret[:]) // never fails
	return t
}

// The text has five fields with a dot after each but the last:
//
//	rlock-ticket  so that a scanner for secrets finds it
//	1             the version, which determines the rest
//	kind          one letter
//	client        36 characters
//	secret        16 bytes, as unpadded base64 for URLs
//	name          the same
//
// So it is safe in a header, a URL or JSON. Each ticket has exactly one text.
const (
	prefix  = "rlock-ticket."
	version = "1"
)

var base = base64.RawURLEncoding.Strict()

// String returns the text. Logging it gives the lock away.
func (t Ticket) String() string {
	return prefix + version + "." + string(t.Kind) + "." + t.Client + "." + base.EncodeToString(t.Secret[:]) + "." + base.EncodeToString([]byte(t.Name))
}

// The errors of Parse do not contain the text, which may be a secret.
var (
	ErrForm    = errors.New("it is not a text that Export returned")
	ErrVersion = errors.New("it is of a later version of this library")
)

// Parse accepts only texts that String can return.
func Parse(text string) (t Ticket, err error) {
	rest, ok := strings.CutPrefix(text, prefix)
	if !ok {
		return Ticket{}, ErrForm
	}
	number, rest, _ := strings.Cut(rest, ".")
	if number != version {
		if isLater(number) {
			return Ticket{}, ErrVersion
		}
		return Ticket{}, ErrForm
	}
	fields := strings.Split(rest, ".")
	if len(fields) != 4 || len(fields[0]) != 1 || fields[0] < "a" || fields[0] > "z" || !isUUID(fields[1]) {
		return Ticket{}, ErrForm
	}
	secret, err1 := decode(fields[2])
	name, err2 := decode(fields[3])
	if err1 != nil || err2 != nil || len(secret) != secretBytes || len(name) == 0 {
		return Ticket{}, ErrForm
	}
	return Ticket{Kind: fields[0][0], Client: fields[1], Secret: [secretBytes]byte(secret), Name: string(name)}, nil
}

// decode rejects line breaks, which package base64 skips.
func decode(text string) ([]byte, error) {
	if strings.ContainsAny(text, "\r\n") {
		return nil, ErrForm
	}
	return base.DecodeString(text)
}

func isLater(number string) bool {
	if number == "" || len(number) > 9 || number[0] == '0' {
		return false
	}
	for _, c := range []byte(number) {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

// isUUID reports whether id has the form of a Client id in owner fields. Scripts accept no other owners.
func isUUID(id string) bool {
	if len(id) != 36 {
		return false
	}
	for i, c := range []byte(id) {
		switch {
		case i == 8 || i == 13 || i == 18 || i == 23:
			if c != '-' {
				return false
			}
		case (c < '0' || c > '9') && (c < 'a' || c > 'f'):
			return false
		}
	}
	return true
}

// Number returns the number of the ticket in Redis: decimal, like the tags of owners, and impossible to guess.
func (t Ticket) Number() string {
	sum := sha256.Sum256(append([]byte("rlock-ticket 1 "), t.Secret[:]...))
	return new(big.Int).SetBytes(sum[:16]).String()
}
