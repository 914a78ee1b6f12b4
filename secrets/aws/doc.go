// Package aws gets credentials of roles from AWS STS, and values from AWS Secrets Manager. What it signs its requests
// with, and the credentials of a role, are as [sign.ParseCredentials] reads them.
package aws
