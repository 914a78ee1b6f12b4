// Package problem turns errors into the API's answers: a status and a JSON body that says what was wrong, where, and how to
// put it right. [StatusOf] is the one mapping; [Refuse], [Invalid] and [List] make the errors that it shows.
package problem
