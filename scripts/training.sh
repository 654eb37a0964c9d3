# shellcheck shell=bash
# One training by fairseq-train, for protocol.sh; sourced, not run. Reads STAGING (the arguments of every
# stage), SETTING, PROCESSES, NODES, LAUNCH and RENDEZVOUS of the script that sources it.

# train STAGE FOLDER: fairseq-train until it is done; goes on from the last whole checkpoint.
train() {
    local stage=$1 folder=$2
    arguments "$stage"
    if ! dry; then
        mkdir -p "$folder"
        same_arguments "$stage" "$folder"
    fi
    if [[ -f $folder/trained ]]; then
        say "$(basename "$folder"): trained already"
        return
    fi
    if ! dry; then
        local found
        found=$("$PYTHON" -m fairseq_floater.experiments.run_folder resume "$folder" "${SETTING[world]}") ||
            die "$(basename "$folder"): cannot go on with ${SETTING[processes]}."
        say "$(basename "$folder"): $found"
        keep_arguments "$stage" "$folder"
        printf '%s\n' "${SETTING[configured_tokens]}" >"$folder/$stage.tokens.part"
        put "$folder/$stage.tokens.part" "$folder/$stage.tokens"
        # The settings of a run that trains on are not the donor's.
        if [[ $folder == "$RUN_DIR" ]]; then keep_arguments settings "$folder"; fi
        # Left by an earlier stop: a failure before the first update must not be taken for one.
        rm -f "$folder/checkpoints/stopped"
    fi
    say "$(basename "$folder"): training, ${SETTING[tokens_per_update]} tokens an update" \
        "(--update-freq ${SETTING[update_frequency]}, ${SETTING[processes]}); log in $folder/train.log"
    launcher "$(basename "$folder")"
    local failed=""
    logged "$(basename "$folder")" "$folder/train.log" "${LAUNCHER[@]}" "$PYTHON" -m fairseq_cli.train "${ARGS[@]}" ||
        failed=yes
    dry && return
    # First: torchrun fails where its processes were told to stop, and did so well.
    if [[ -f $folder/checkpoints/stopped ]]; then
        say "$(basename "$folder"): told to stop, and saved; run the same command to go on."
        exit 143
    fi
    [[ -z $failed ]] || exit 1
    # fairseq makes its folder anew where a mount was lost; the lock is still held on the disk that went.
    [[ $RUN_DIR/.lock -ef /dev/fd/9 ]] ||
        die "$RUN_DIR is not the folder it was when the training began: was its disk lost? Mount it and run this again."
    touch "$folder/trained"
}

# launcher NAME: fills LAUNCHER with what starts the processes of a training; fairseq does for GPUs of one node.
launcher() {
    LAUNCHER=()
    [[ ${SETTING[torchrun]} == yes ]] || return 0
    # shellcheck disable=SC2153  # LAUNCH is a setting, LAUNCHER made of it
    read -r -a LAUNCHER <<<"$LAUNCH"
    # torchrun kills its processes 30 seconds after SIGTERM unless told otherwise: too soon for a big checkpoint.
    LAUNCHER+=(env FLOATER_SAVE_ON_SIGTERM=1 TORCH_ELASTIC_SHUTDOWN_TIMEOUT=280)
    LAUNCHER+=("$PYTHON" -m torch.distributed.run --nnodes "$NODES" --nproc_per_node "$((PROCESSES > 0 ? PROCESSES : 1))")
    if ((NODES > 1)); then
        LAUNCHER+=(--rdzv_backend c10d --rdzv_endpoint "$RENDEZVOUS" --rdzv_id "$1-$$")
    else
        LAUNCHER+=(--standalone)
    fi
    # shellcheck disable=SC2016  # RANK is of each process
    LAUNCHER+=(--no-python bash -c 'exec "$@" --distributed-rank "$RANK"' fairseq-train)
}

# same_arguments STAGE FOLDER: a run resumes under the arguments it was started with; GPUs may differ.
same_arguments() {
    local said
    said=$("$PYTHON" -m fairseq_floater.experiments.run_folder same "$2" "$1" "$STAGING" 2>&1) || die "$said"
}

# keep_arguments STAGE FOLDER: writes down what a stage is about to run with.
keep_arguments() {
    cp "$STAGING/$1.args" "$2/$1.args.part"
    put "$2/$1.args.part" "$2/$1.args"
}

# same_settings FOLDER KEY...: what was made there was made under the same settings.
same_settings() {
    local folder=$1 key before
    shift
    for key in "$@"; do
        before=$(sed -n "s/^$key=//p" "$folder/settings.args" 2>/dev/null || true)
        [[ -z $before || $before == "${SETTING[$key]}" ]] ||
            die "$folder was made with $key $before, not ${SETTING[$key]}; use another --work, or remove average.json, generate.* and scores.* there."
    done
}
