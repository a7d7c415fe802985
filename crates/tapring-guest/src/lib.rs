//! A guest in software: vhost-user frontend and virtio-net driver.
