# Sourced after environment.sh: fetches the server of S3's protocol that tests talk to. It stays outside .venv, whose
# packages it also uses. The program does not need it, so .venv stays as users have it.

make_servers() {
    fetch_packages servers "a server of S3's protocol" moto boto3 s3transfer Flask flask-cors Werkzeug blinker \
        itsdangerous py-partiql-parser responses xmltodict || return 1
    export BIRDIE_SERVERS="$FETCHED"
}
