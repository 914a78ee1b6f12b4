// Package openapi describes the routes of the API in OpenAPI 3.1, from the types that they decode and encode.
package openapi
