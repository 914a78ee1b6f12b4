// Package rest is the frame that the endpoints of the API hang in: a [Route] says what an endpoint takes and answers, its
// [Handler] returns a [Reply] or an error, and an [Answerer] writes either. The package also reads what many endpoints
// have in common: the box in the path, and the version in If-Match.
package rest
