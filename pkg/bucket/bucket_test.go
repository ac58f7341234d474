package bucket

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// mount writes the files of a Secret as kubelet does: links to ..data, which is a link to a
// directory of this version.
func mount(t *testing.T, dir, version string, files map[string]string) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Mkdir(filepath.Join(dir, version), 0o700))
	for name, text := range files {
		must(os.WriteFile(filepath.Join(dir, version, name), []byte(text), 0o600))
		if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
			must(os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)))
		}
	}
	must(os.Symlink(version, filepath.Join(dir, "..data_tmp")))
	must(os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
}

func sameAccess(a, b Bucket) bool {
	a.Expires, b.Expires = time.Time{}, time.Time{}
	return a == b
}

func TestReadDir(t *testing.T) {
	for name, tc := range map[string]struct {
		files map[string]string
		want  Bucket
		fails string
	}{
		"v1alpha2": {files: map[string]string{
			"COSI_PROTOCOL": "S3", "COSI_S3_BUCKET_ID": "data", "COSI_S3_ENDPOINT": "https://s3.example.com", "COSI_S3_REGION": "eu-west-1", "COSI_S3_ADDRESSING_STYLE": "virtual",
			"COSI_S3_ACCESS_KEY_ID": "id", "COSI_S3_ACCESS_SECRET_KEY": "key", "COSI_CERTIFICATE_AUTHORITY": "PEM",
		}, want: Bucket{Endpoint: "https://s3.example.com", Region: "eu-west-1", Name: "data", VirtualHost: true, CA: "PEM", AccessKeyID: "id", SecretAccessKey: "key"}},
		"v1alpha2, by path": {files: map[string]string{"COSI_PROTOCOL": "S3", "COSI_S3_ADDRESSING_STYLE": "path"}},
		"v1alpha1": {
			files: map[string]string{"BucketInfo": `{"metadata": {"name": "bc-1"}, "spec": {"bucketName": "data", "authenticationType": "KEY", "protocols": ["s3"], "secretAzure": null,
			"secretS3": {"endpoint": "http://rgw.rook-ceph.svc:80", "region": "", "accessKeyID": "id", "accessSecretKey": "key"}}}`},
			want: Bucket{Endpoint: "http://rgw.rook-ceph.svc:80", Name: "data", AccessKeyID: "id", SecretAccessKey: "key"},
		},
		"AWS": {
			files: map[string]string{"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key", "AWS_SESSION_TOKEN": "token", "AWS_REGION": "eu-west-1", "AWS_CREDENTIAL_EXPIRATION": "2026-01-02T03:04:05+01:00"},
			want:  Bucket{Endpoint: "https://s3.eu-west-1.amazonaws.com", Region: "eu-west-1", AccessKeyID: "id", SecretAccessKey: "key", SessionToken: "token", Expires: time.Date(2026, 1, 2, 2, 4, 5, 0, time.UTC)},
		},
		"AWS, in China": {
			files: map[string]string{"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key", "AWS_REGION": "cn-north-1"},
			want:  Bucket{Endpoint: "https://s3.cn-north-1.amazonaws.com.cn", Region: "cn-north-1", AccessKeyID: "id", SecretAccessKey: "key"},
		},
		"AWS, the European Sovereign Cloud": {
			files: map[string]string{"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key", "AWS_REGION": "eusc-de-east-1"},
			want:  Bucket{Endpoint: "https://s3.eusc-de-east-1.amazonaws.eu", Region: "eusc-de-east-1", AccessKeyID: "id", SecretAccessKey: "key"},
		},
		"AWS, elsewhere": {
			files: map[string]string{"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key", "AWS_DEFAULT_REGION": "r", "AWS_ENDPOINT_URL": "http://s3", "AWS_ENDPOINT_URL_S3": "http://s3-only", "AWS_CREDENTIAL_EXPIRATION": "soon"},
			want:  Bucket{Endpoint: "http://s3-only", Region: "r", AccessKeyID: "id", SecretAccessKey: "key"},
		},
		"Azure":           {files: map[string]string{"COSI_PROTOCOL": "Azure", "COSI_AZURE_ACCESS_TOKEN": "c4n4ry"}, fails: "Azure"},
		"odd":             {files: map[string]string{"COSI_PROTOCOL": "c4n4ry"}, fails: "not supported"},
		"v1alpha1, Azure": {files: map[string]string{"BucketInfo": `{"spec": {"bucketName": "data", "secretS3": null, "secretAzure": {"accessToken": "c4n4ry"}}}`}, fails: "not supported"},
		"v1alpha1, odd":   {files: map[string]string{"BucketInfo": `c4n4ry`}, fails: "BucketInfo"},
		"nothing":         {files: map[string]string{"password": "c4n4ry"}, fails: "has no file COSI_PROTOCOL"},
	} {
		dir := t.TempDir()
		mount(t, dir, "..1", tc.files)
		got, err := ReadDir(dir)
		switch {
		case tc.fails == "" && (err != nil || !got.Expires.Equal(tc.want.Expires) || !sameAccess(got, tc.want) && name != "v1alpha2, by path"):
			t.Errorf("%s: %#v, %v", name, got, err)
		case tc.fails != "" && (err == nil || !strings.Contains(err.Error(), tc.fails) || strings.Contains(err.Error(), "c4n4ry")):
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := ReadDir(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a directory that is not there")
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "AWS_REGION"), 0o700); err != nil {
		t.Fatal(err)
	}
	mount(t, dir, "..1", map[string]string{"AWS_ACCESS_KEY_ID": "id"})
	if _, err := ReadDir(dir); err == nil {
		t.Error("a key that cannot be read")
	}
}

// TestAFIFOIsNotWaitedFor has one in place of a key's file.
func TestAFIFOIsNotWaitedFor(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "COSI_PROTOCOL"), 0o600); err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 1)
	go func() {
		_, err := ReadDir(dir)
		read <- err
	}()
	select {
	case err := <-read:
		if err == nil || !strings.Contains(err.Error(), "COSI_PROTOCOL is no regular file") {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Error("it is waited for")
	}
}

// TestASecretIsReadInOneVersion rotates it all the time.
func TestASecretIsReadInOneVersion(t *testing.T) {
	dir := t.TempDir()
	version := func(n string) map[string]string {
		return map[string]string{"COSI_PROTOCOL": "S3", "COSI_S3_ACCESS_KEY_ID": n, "COSI_S3_ACCESS_SECRET_KEY": n, "COSI_S3_REGION": n}
	}
	mount(t, dir, "..0", version("0"))
	rotated, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(rotated)
		for i := 1; ; i++ {
			select {
			case <-done:
				return
			default:
			}
			old, _ := os.Readlink(filepath.Join(dir, "..data"))
			mount(t, dir, ".."+time.Now().Format("150405.000000000"), version(time.Now().String()))
			_ = os.RemoveAll(filepath.Join(dir, old))
		}
	}()
	for range 2000 {
		b, err := ReadDir(dir)
		if err != nil || b.AccessKeyID == "" || b.AccessKeyID != b.SecretAccessKey || string(b.AccessKeyID) != b.Region {
			t.Errorf("%v, %v", err, b.Region)
			break
		}
	}
	close(done)
	<-rotated
}
