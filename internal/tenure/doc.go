// Package tenure is the state of locks that a Client has: tenures in Redis, the holds that stand on them, and their levels. It keeps them
// (renewals, counts, sweeps), tells their sections of a loss, and ends with the Client. Package engine takes, passes on and releases them.
//
// It knows handles, options and errors of users by what it is given (see [Options]), and features by what they observe (see [Observer]).
package tenure
