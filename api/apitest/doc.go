// Package apitest provides the environment for tests of the API: a [Host] with boxes in memory, and [Serve], which serves
// some endpoints with it as package server does.
package apitest
