// Package problem converts errors to responses of the API: a status, and a JSON body with the problem, its location and
// the fix. [StatusOf] is the only such conversion; [Refuse], [Invalid] and [List] create errors for it.
package problem
