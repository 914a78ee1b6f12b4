// Package rest is the framework of the API's endpoints. A [Route] describes the requests and responses of an endpoint,
// its [Handler] returns a [Reply] or an error, and an [Answerer] writes either. The package also parses common parts of
// requests: the box in the path, and the version in If-Match.
package rest
