// Package openapi generates the OpenAPI 3.1 document of the API from its routes and the types they decode and encode.
package openapi
